//! Named after the paper's section and the property.

mod decide;
mod shows;
mod world;
