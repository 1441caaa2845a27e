"""Programs, independent truths and readers that tests of all folders share."""
