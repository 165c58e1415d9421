//! Engine, session and generation over a mock device: what runs when, and where the timeline ends.

mod ahead;
mod loading;
mod mock;
mod timeline;
