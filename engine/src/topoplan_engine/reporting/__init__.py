"""What commands print: tables, JSON, progress, notices."""
