"""Writers: the back ends that store the rows of runs or send them elsewhere."""
