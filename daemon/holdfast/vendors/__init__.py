"""One adapter for each vendor of hardware. All are a `holdfast.discovery.source.Source`."""
