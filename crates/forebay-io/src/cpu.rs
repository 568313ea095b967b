//! What this process has used, CPU time and peak memory, for ledgers and benchmarks; and the memory it could still have.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time of all threads of this process, user and system.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Most resident memory this process ever had, in bytes; 0 where the kernel does not tell.
pub fn memory_peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    kilobytes(&status, "VmHWM:").unwrap_or(0)
}

/// Memory that can be had before somebody is killed for it: what the kernel calls available, with swap, and no more than the group of this process
/// may have beside what is read from files anyway; `None` where the kernel does not tell.
pub fn memory_available_bytes() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok()?;
    let swap = kilobytes(&machine, "SwapFree:").unwrap_or(0);
    let available = kilobytes(&machine, "MemAvailable:")?.saturating_add(swap);
    Some(available.min(group_available_bytes().unwrap_or(u64::MAX)))
}

/// What the limit of a container leaves, as version 2 of control groups tells.
fn group_available_bytes() -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let used = number("memory.current")?;
    let stat = read("memory.stat")?;
    let cached = stat.lines().find_map(|line| line.strip_prefix("file "));
    let cached = cached
        .and_then(|bytes| bytes.trim().parse::<u64>().ok())
        .unwrap_or(0);
    let most = number("memory.max")?;
    Some(most.saturating_sub(used.saturating_sub(cached)))
}

/// A line of a file of the kernel that counts in kB, in bytes.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let count: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    count.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_bytes() {
        let text = "MemTotal:       24 kB\nMemAvailable:   3 kB\nOdd: 5\n";
        assert_eq!(kilobytes(text, "MemAvailable:"), Some(3072));
        assert_eq!(kilobytes(text, "Odd:"), None);
        assert_eq!(kilobytes(text, "SwapFree:"), None);
        let available = memory_available_bytes().unwrap();
        assert!(available > 1 << 20 && available < 1 << 50, "{available}");
    }
}
