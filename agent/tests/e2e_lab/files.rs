//! Paths of the configuration, in an agent that runs.

use crate::common::{Setup, until};
use fide_wire::control::Request;
use std::ffi::CString;
use std::fs;

#[test]
fn a_fifo_in_the_place_of_the_configuration_does_not_stop_the_agent() {
    let Some(w) = Setup::hosts(2).up() else { return };
    let config = w.config(1);
    let aside = config.with_extension("aside");
    fs::rename(&config, &aside).unwrap();
    let path = CString::new(config.to_str().unwrap()).unwrap();
    // SAFETY: a C string that lives across the call.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    let refused = w.ask(1, &Request::Reload).unwrap_err().to_string();
    assert!(refused.contains("stays as it was") && refused.contains("is a FIFO"), "{refused}");
    w.signal_agent(1, libc::SIGHUP);
    until("h1 says why it does not reload", || w.log(1).matches("is a FIFO").count() > 0);
    assert_eq!(w.state(2, "h1"), "alive");
    fs::rename(&aside, &config).unwrap();
    w.ask(1, &Request::Reload).unwrap();
}

#[test]
fn an_agent_that_ends_removes_its_own_socket_and_no_other_file() {
    let Some(mut w) = Setup::hosts(2).up() else { return };
    let socket = w.socket(1);
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "years of work\n").unwrap();
    w.signal_agent(1, libc::SIGTERM);
    assert!(w.agent_ended(1).success());
    assert_eq!(fs::read_to_string(&socket).unwrap(), "years of work\n");
    let socket = w.socket(2);
    w.signal_agent(2, libc::SIGTERM);
    assert!(w.agent_ended(2).success());
    assert!(!socket.exists());
}
