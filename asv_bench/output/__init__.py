"""What commands leave for a person or a program: tables, drawings and records."""
