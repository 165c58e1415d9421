//! Engine, session and generation over a mock device: what runs when, and where the timeline ends.

mod ahead;
mod guide;
mod loading;
mod mock;
mod timeline;
