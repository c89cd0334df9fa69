"""What people who run job queues reported, as black-box tests."""
