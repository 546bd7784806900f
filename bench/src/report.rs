//! One HTML file with its drawings inside.
