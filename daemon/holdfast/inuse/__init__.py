"""Who holds each device: the one memory of it, which all that ask share."""
