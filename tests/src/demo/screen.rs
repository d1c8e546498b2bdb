//! Output while the demo runs: a block that is redrawn in place on a terminal, sparse lines elsewhere.

use std::{
    io::{IsTerminal as _, Write as _, stderr},
    time::{Duration, Instant},
};

const SPARSE: Duration = Duration::from_secs(2);

/// Where progress is shown: standard error, so that standard output has the result only.
#[derive(Debug)]
pub struct Screen {
    live: bool,
    drawn: usize,
    last: Option<Instant>,
}

impl Screen {
    /// The terminal, if there is one.
    pub fn new() -> Self {
        Self {
            live: stderr().is_terminal(),
            drawn: 0,
            last: None,
        }
    }

    /// Shows the state: `block` on a terminal, else `line`, not more often than every two seconds.
    pub fn state(&mut self, block: impl FnOnce() -> Vec<String>, line: impl FnOnce() -> String) {
        if self.live {
            let block = block();
            let mut text = self.wipe();
            for line in &block {
                text.push_str(line);
                text.push('\n');
            }
            self.drawn = block.len();
            put(&text);
        } else if self.last.is_none_or(|last| last.elapsed() >= SPARSE) {
            self.last = Some(Instant::now());
            put(&format!("{}\n", line()));
        }
    }

    /// Prints lines that stay.
    pub fn say(&mut self, text: &str) {
        let wipe = self.wipe();
        self.drawn = 0;
        put(&format!("{wipe}{text}\n"));
    }

    /// Takes the last block away.
    pub fn clear(&mut self) {
        let wipe = self.wipe();
        self.drawn = 0;
        put(&wipe);
    }

    /// Up to the block's first line, and clear from there.
    fn wipe(&self) -> String {
        match self.drawn {
            0 => String::new(),
            lines => format!("\x1b[{lines}A\x1b[J"),
        }
    }
}

fn put(text: &str) {
    // A closed standard error must not end the demo.
    drop(stderr().write_all(text.as_bytes()));
}

/// A bar of up to `width` cells for `amount` of at most `full`, in eighths of a cell.
pub fn bar(amount: f64, full: f64, width: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let share = if full > 0.0 {
        (amount / full).clamp(0.0, 1.0)
    } else {
        0.0
    };
    let eighths = (share * width as f64 * 8.0).round() as usize;
    let bar = format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8]);
    format!("{bar:<width$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars() {
        assert_eq!(bar(0.0, 10.0, 4), "    ");
        assert_eq!(bar(5.0, 10.0, 4), "██  ");
        assert_eq!(bar(5.5, 10.0, 4), "██▎ ");
        assert_eq!(bar(20.0, 10.0, 4), "████");
        assert_eq!(bar(1.0, 0.0, 2), "  ");
    }
}
