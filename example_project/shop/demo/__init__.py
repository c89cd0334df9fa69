"""The demonstration that ``make demo`` runs, in three acts: customers, a worker, and the account of it."""
