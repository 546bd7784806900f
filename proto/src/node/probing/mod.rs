//! Questions to hosts that are doubted: whom to ask, and by which receive queue the answer comes.

pub mod answerers;
pub mod steering;

pub use answerers::{ANSWERERS, Answerer, Answerers, ITSELF, is_reserved};
pub use steering::{Emptied, Steered, Steering};
