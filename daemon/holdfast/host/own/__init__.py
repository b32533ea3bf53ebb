"""What this process is and may do: boot id, privileges, memory, open files."""
