"""`lox.find_nan`: where the first NaN appeared."""
