//! The bytes FiDe puts on the wire, on event rings and on its control socket, defined once.
