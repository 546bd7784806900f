//! Pure protocol cores: no clock, socket, thread or unsafe.
