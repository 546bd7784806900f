//! Real agents, one per host of a lab: what crashes is told with its cause, and nothing else is.


mod alone;
mod beats;
mod campaign;
mod clients;
mod crash;
mod end_connections;
mod fence;
mod files;
mod freshness;
mod gaps;
mod groups;
mod linearizable;
mod lines;
mod load;
mod maintenance;
mod memberlist;
mod monitoring;
mod neighbours;
mod ownership;
mod progress;
mod redis;
mod sentinel;
mod shares;
mod silence;
mod swap;
mod traces;
mod ways;
mod witness;
