//! The daemon's log: to standard error, in lines for people or JSON; how much can be changed while it runs.

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

/// Changes how much is logged.
pub(crate) struct Log(reload::Handle<LevelFilter, Registry>);

impl Log {
    /// Begins to log.
    pub(crate) fn start(level: &str, format: &str) -> Self {
        let (filter, handle) = reload::Layer::new(self::level(level));
        let registry = tracing_subscriber::registry().with(filter);
        let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
        // Another logger in this process would be a mistake of ours; the daemon runs without then.
        let _ = match format {
            "json" => registry.with(layer.json().flatten_event(true)).try_init(),
            _ => {
                let colour =
                    std::io::IsTerminal::is_terminal(&std::io::stderr()) && std::env::var_os("NO_COLOR").is_none();
                registry.with(layer.with_ansi(colour)).try_init()
            }
        };
        Self(handle)
    }

    /// Logs so much from now on.
    pub(crate) fn set(&self, level: &str) {
        // The logger lives as long as the process.
        let _ = self.0.reload(self::level(level));
    }
}

fn level(name: &str) -> LevelFilter {
    name.parse().unwrap_or(LevelFilter::INFO)
}
