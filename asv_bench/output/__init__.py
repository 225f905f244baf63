"""What commands leave for a person or a program: tables and records."""
