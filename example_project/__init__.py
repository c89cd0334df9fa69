"""A small shop that takes orders and leaves the rest to awa."""
