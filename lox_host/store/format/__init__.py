"""The bytes of a store: journals, layouts, frames and their columns, segments, locks."""
