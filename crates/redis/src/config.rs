//! Where the servers are and how they are used: settings and URLs.
