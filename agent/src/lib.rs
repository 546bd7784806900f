//! fided, the agent: drain xdp, step proto, feed lane, publish.
