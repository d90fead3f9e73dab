"""What a head looks at, and what it carries."""
