"""What commands show: lists, stories and tables."""
