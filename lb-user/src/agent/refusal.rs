//! Why the agent did not do what it was asked.

use crate::control::api::ErrorDetail;

/// Whose fault a refusal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What was asked for cannot be.
    Invalid,
    /// What it is about is not there.
    NotFound,
    /// What is there does not go with it.
    Conflict,
    /// There is no room now.
    Exhausted,
    /// The agent or the kernel failed.
    Failed,
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}{}", prefix(detail), detail.message, suffix(detail))]
pub struct Refusal {
    /// Whose fault.
    pub kind: Kind,
    /// Field, message and hint.
    pub detail: ErrorDetail,
}

fn prefix(detail: &ErrorDetail) -> String {
    detail
        .field
        .as_ref()
        .map_or_else(String::new, |f| format!("{f}: "))
}

fn suffix(detail: &ErrorDetail) -> String {
    detail
        .hint
        .as_ref()
        .map_or_else(String::new, |h| format!("; {h}"))
}

impl Refusal {
    fn new(kind: Kind, field: Option<&str>, message: String, hint: Option<&str>) -> Self {
        Self {
            kind,
            detail: ErrorDetail {
                field: field.map(str::to_owned),
                message,
                hint: hint.map(str::to_owned),
            },
        }
    }

    /// A field is wrong.
    pub fn invalid(field: &str, message: String, hint: &str) -> Self {
        Self::new(Kind::Invalid, Some(field), message, Some(hint))
    }

    /// There is no such thing.
    pub fn not_found(message: String, hint: &str) -> Self {
        Self::new(Kind::NotFound, None, message, Some(hint))
    }

    /// There is such a thing, and it is another.
    pub fn conflict(field: &str, message: String, hint: &str) -> Self {
        Self::new(Kind::Conflict, Some(field), message, Some(hint))
    }

    /// There is no room now.
    pub fn exhausted(message: String, hint: &str) -> Self {
        Self::new(Kind::Exhausted, None, message, Some(hint))
    }

    /// The agent or the kernel failed.
    pub fn failed(message: String) -> Self {
        Self::new(Kind::Failed, None, message, None)
    }
}
