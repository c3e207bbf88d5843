"""Every number held against its evidence."""
