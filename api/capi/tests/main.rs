//! The C interface: header, library and bindings.

#![allow(missing_docs)]

mod bindings;
mod c;
