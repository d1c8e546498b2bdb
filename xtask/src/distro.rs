//! Which distribution this is, and what things are called there.

use crate::need::Need;
use std::fs;

/// Families of distributions that we know the package names of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distro {
    /// Debian, Ubuntu and what derives from them: set up by us.
    Debian,
    /// Fedora, RHEL and their like.
    Fedora,
    /// Arch and its like.
    Arch,
    /// Any other.
    Other,
}

impl Distro {
    /// From `ID` and `ID_LIKE` of os-release.
    pub fn detect() -> Self {
        let text = fs::read_to_string("/etc/os-release")
            .or_else(|_| fs::read_to_string("/usr/lib/os-release"))
            .unwrap_or_default();
        Self::from_os_release(&text)
    }

    fn from_os_release(text: &str) -> Self {
        let ids = text
            .lines()
            .filter_map(|line| line.strip_prefix("ID=").or(line.strip_prefix("ID_LIKE=")))
            .flat_map(|value| value.trim_matches('"').split_ascii_whitespace());
        for id in ids {
            match id {
                "debian" | "ubuntu" => return Self::Debian,
                "fedora" | "rhel" | "centos" => return Self::Fedora,
                "arch" => return Self::Arch,
                _ => {}
            }
        }
        Self::Other
    }

    /// What to type for what is missing, one command a line.
    pub fn advice(self, need: Need) -> &'static str {
        match (need, self) {
            (Need::BpfCore, Self::Debian) => "apt-get install rustc-web libstd-rust-web-dev-bpf",
            (Need::BpfCore, _) => "rustup toolchain install nightly --component rust-src",
            (Need::BpfLinker, Self::Debian) => {
                "apt-get install gcc g++ pkg-config llvm-22-dev libpolly-22-dev zlib1g-dev libzstd-dev libxml2-dev libffi-dev\n\
                 LLVM_PREFIX=/usr/lib/llvm-22 cargo install bpf-linker --version =0.13.0 --locked --no-default-features --features llvm-22"
            }
            (Need::BpfLinker, Self::Fedora) => {
                "dnf install gcc-c++ pkgconf llvm-devel zlib-devel libzstd-devel libxml2-devel libffi-devel\n\
                 cargo install bpf-linker --version =0.13.0 --locked --no-default-features --features llvm-22\n\
                 (llvm-22 stands for the version of LLVM that is installed: 21, 22 or 23)"
            }
            (Need::BpfLinker, Self::Arch) => {
                "pacman -S --needed gcc pkgconf llvm zlib zstd libxml2 libffi\n\
                 cargo install bpf-linker --version =0.13.0 --locked --no-default-features --features llvm-22\n\
                 (llvm-22 stands for the version of LLVM that is installed: 21, 22 or 23)"
            }
            (Need::BpfLinker, Self::Other) => {
                "install a C++ compiler, pkg-config, LLVM 22 (or 21, 23), zlib, zstd, libxml2 and libffi with their headers, then\n\
                 cargo install bpf-linker --version =0.13.0 --locked --no-default-features --features llvm-22"
            }
            (Need::Ip, Self::Debian) => "apt-get install iproute2",
            (Need::Ip, Self::Fedora) => "dnf install iproute",
            (Need::Ip, Self::Arch) => "pacman -S --needed iproute2",
            (Need::Ip, Self::Other) => "install iproute2",
            (Need::Rustfmt, _) => "rustup component add rustfmt",
            (Need::Clippy, _) => "rustup component add clippy",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_told_by_id_or_likeness() {
        for (text, expected) in [
            ("NAME=x\nID=debian\nVERSION_ID=\"12\"", Distro::Debian),
            ("ID=linuxmint\nID_LIKE=\"ubuntu debian\"", Distro::Debian),
            (
                "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"",
                Distro::Fedora,
            ),
            ("ID=manjaro\nID_LIKE=arch", Distro::Arch),
            ("ID=alpine\nBUG_REPORT_URL=debian", Distro::Other),
            ("", Distro::Other),
        ] {
            assert_eq!(Distro::from_os_release(text), expected, "{text}");
        }
    }

    #[test]
    fn there_is_advice_for_everything() {
        for distro in [Distro::Debian, Distro::Fedora, Distro::Arch, Distro::Other] {
            for need in Need::ALL {
                assert!(!distro.advice(need).is_empty(), "{distro:?} {need:?}");
            }
        }
    }
}
