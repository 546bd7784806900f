//! libfide: the C interface.
