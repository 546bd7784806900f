//! The program as it is run: what it prints, on which stream, and its exit code.
//!
//! [`agent`] runs it against an agent that answers from a script ([`fake`]), [`lab`] in real labs (root), [`sim`] in
//! simulated worlds, [`plan`] on networks that do not exist, [`install`] by way of `make`, [`packages`] by way of dpkg, [`split`] as the two programs that it is.

mod agent;
mod documents;
mod fake;
mod install;
mod lab;
mod packages;
mod plan;
mod sim;
mod split;
