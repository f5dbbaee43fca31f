"""Which sample comes when, and on which rank: the endless stream of a dataset or a mixture, and its state."""
