//! Hosts and switches as network namespaces, and fault injection.
