//! What stands around the loop: access, configuration, files, history, hooks, interfaces, metrics, what is shipped for monitoring, selectors; and how the agent's files depend on each other.
//! None of it needs a lab.

mod access;
mod browser;
#[path = "../common/chromium.rs"]
mod chromium;
mod config;
mod files;
mod history;
mod hooks;
mod http;
mod layout;
mod links;
mod metrics;
mod monitoring;
mod select;
