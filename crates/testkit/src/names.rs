//! Names that look like something else.
