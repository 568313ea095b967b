//! Storage that serves a demand: object storage targets, streams and prefixes, drives and their endurance, cores for NVMe/TCP.

use forebay_core::Result;

use crate::field::request;
use crate::hardware::{
    AHCI_QUEUE_COMMANDS, AHCI_QUEUES, NETWORK_VOLUME_RATE, NVME_DRIVE_RATES, NVME_QUEUE_COMMANDS_MAX,
    NVME_QUEUES_MAX, PARALLEL_FS_LATENCY_S,
};
use crate::quantity::{Bytes, BytesPerSecond, Count, Factor, PerSecond, Ratio, Seconds, lit};
use crate::report::Report;
use crate::sheet::{Num, Sheet, ceil, wrong};
use crate::source;

request! {
    /// What to ask about storage.
    Request {
        /// Read rate that is needed.
        read: BytesPerSecond = lit(0.0),
        /// Write rate that is needed.
        write: BytesPerSecond = lit(0.0),
        /// Rate of one Lustre object storage target.
        ost_rate: BytesPerSecond = lit(4e9),
        /// Share of that rate which is reached with many clients.
        efficiency: Ratio = lit(1.0),
        /// Object storage targets that are there; asks what each client gets.
        osts: Option<Count> = None,
        /// Clients that share them.
        clients: Option<Count> = None,
        /// Rate one large file is read or written with; asks for its stripe count.
        file_rate: Option<BytesPerSecond> = None,
        /// Time to the first byte of an object; published figures range from 5 to 100 ms.
        first_byte: Seconds = lit(0.05),
        /// Bytes per request.
        part: Bytes = lit(16e6),
        /// Rate of one connection to an object store.
        stream_rate: BytesPerSecond = lit(100e6),
        /// GET requests per second a prefix serves.
        get_limit: PerSecond = lit(5500.0),
        /// PUT requests per second a prefix takes.
        put_limit: PerSecond = lit(3500.0),
        /// Objects that are read once each; asks how long their requests take alone.
        objects: Option<Count> = None,
        /// GET requests per second that are sent for them.
        get_rate: PerSecond = lit(5000.0),
        /// NVMe/TCP traffic one core carries.
        core_rate: BytesPerSecond = lit(1.25e9),
        /// NVMe/TCP traffic of a node; asks for its cores.
        nvme_tcp: Option<BytesPerSecond> = None,
        /// Sequential read rate of one NVMe drive.
        drive_rate: BytesPerSecond = lit(NVME_DRIVE_RATES[1]),
        /// Sequential write rate of one NVMe drive; most drives write at half their read rate.
        drive_write_rate: BytesPerSecond = lit(NVME_DRIVE_RATES[0]),
        /// Rate of one network volume, for comparison with drives.
        volume_rate: BytesPerSecond = lit(NETWORK_VOLUME_RATE),
        /// Bytes that the drives must hold.
        capacity: Bytes = lit(0.0),
        /// Capacity of one NVMe drive.
        drive_capacity: Bytes = lit(3.84e12),
        /// Drive writes per day it is made for.
        drive_dwpd: Factor = lit(1.0),
        /// Drives of each node.
        drives_per_node: Count = lit(8.0),
        /// Nodes with drives; asks for their wear.
        nodes: Option<Count> = None,
        /// Size of a checkpoint written to the drives.
        checkpoint_size: Option<Bytes> = None,
        /// Time from checkpoint to checkpoint.
        checkpoint_interval: Option<Seconds> = None,
    }
}

const SECONDS_PER_DAY: f64 = 86_400.0;

/// Answers a request.
pub fn plan(request: &Request) -> Result<Report> {
    let mut sheet = Sheet::new("storage");
    let read = sheet.given("read", request.read);
    let write = sheet.given("write", request.write);
    let sum = read.v + write.v;
    let inputs = [read, write];
    let demand = sheet.rate("demand", sum, "read + write", &inputs)?;
    lustre(&mut sheet, request, demand)?;
    objects(&mut sheet, request, read, write)?;
    let needed = drives(&mut sheet, request, [read, write, demand])?;
    wear(&mut sheet, request, needed)?;
    Ok(sheet.finish())
}

fn lustre(sheet: &mut Sheet, request: &Request, demand: Num) -> Result<()> {
    sheet.group("parallel file system");
    let rate = sheet.given("ost_rate", request.ost_rate).positive()?;
    let efficiency = sheet.given("efficiency", request.efficiency).share()?;
    let inputs = [demand, rate, efficiency];
    let needed = ceil(demand.v / (rate.v * efficiency.v));
    let formula = "ceil(demand / (ost_rate x efficiency))";
    let needed = sheet.count("osts_needed", needed, formula, &inputs)?;
    let osts = sheet.maybe("osts", request.osts).map(Num::whole).transpose()?;
    if let Some(osts) = osts.filter(|osts| osts.v < needed.v) {
        let message = format!("{} targets are there, the demand needs {}", osts.v, needed.v);
        sheet.warn("osts_needed", message);
    }
    if let Some(clients) = sheet.maybe("clients", request.clients) {
        let osts = osts.unwrap_or(needed);
        let inputs = [osts, rate, efficiency, clients];
        let each = osts.v * rate.v * efficiency.v / clients.whole()?.v;
        let formula = format!("{} x ost_rate x efficiency / clients", osts.name);
        sheet.rate("client_rate", each, &formula, &inputs)?;
    }
    if let Some(file) = sheet.maybe("file_rate", request.file_rate) {
        let stripes = ceil(file.positive()?.v / (rate.v * efficiency.v)).max(1.0);
        let there = osts.unwrap_or(needed);
        let limit = there.v.max(1.0);
        if stripes > limit {
            let message = format!(
                "one file at {} needs {stripes} stripes of {limit} targets",
                file.text()
            );
            sheet.warn("stripes", message);
        }
        let inputs = [file, rate, efficiency, there];
        let formula = format!(
            "max(1, min(ceil(file_rate / (ost_rate x efficiency)), {}))",
            there.name
        );
        sheet.count("stripes", stripes.min(limit), &formula, &inputs)?;
    }
    let formula = format!("{PARALLEL_FS_LATENCY_S}: flash behind a network, never below a microsecond");
    sheet
        .from(source::FS_LATENCY)
        .seconds("fs_latency", PARALLEL_FS_LATENCY_S, &formula, &[])?;
    Ok(())
}

/// What requests to an object store are like.
#[derive(Debug, Clone, Copy)]
struct Store {
    part: Num,
    latency: Num,
    stream: Num,
}

/// Requests, prefixes, streams and connections of a rate.
fn requests(sheet: &mut Sheet, store: Store, rate: Num, limit: Num, names: [&'static str; 5]) -> Result<()> {
    let Store {
        part,
        latency,
        stream,
    } = store;
    let formula = format!("{} / part", rate.name);
    let per_second = sheet.per_second(names[0], rate.v / part.v, &formula, &[rate, part])?;
    let prefixes = ceil(per_second.v / limit.v);
    let formula = format!("ceil({} / {})", per_second.name, limit.name);
    sheet
        .from(source::S3)
        .count(names[1], prefixes, &formula, &[per_second, limit])?;
    let streams = ceil(rate.v / stream.v);
    let formula = format!("ceil({} / stream_rate): while bytes flow all the time", rate.name);
    sheet.count(names[2], streams, &formula, &[rate, stream])?;
    let at = |seconds: f64| ceil(rate.v * seconds / part.v);
    let formula = format!(
        "ceil({} x first_byte / part): requests waiting for their first byte",
        rate.name
    );
    let inputs = [rate, latency, part];
    let figure = sheet
        .from(source::LITTLE)
        .count(names[3], at(latency.v), &formula, &inputs)?;
    let answers = [
        ("first byte after 5 ms", at(0.005), false),
        ("first_byte as given", figure.v, true),
        ("first byte after 100 ms", at(0.1), false),
    ];
    sheet.reading(
        figure,
        "published first-byte times of S3 range from 5 to 100 ms",
        &answers,
    );
    let connections = ceil(rate.v * (latency.v / part.v + 1.0 / stream.v));
    let formula = format!(
        "ceil({} x (first_byte / part + 1 / stream_rate)): each fetches a part, then the next",
        rate.name
    );
    let inputs = [rate, latency, part, stream];
    sheet
        .from(source::LITTLE)
        .count(names[4], connections, &formula, &inputs)?;
    Ok(())
}

fn objects(sheet: &mut Sheet, request: &Request, read: Num, write: Num) -> Result<()> {
    sheet.group("object store");
    let part = sheet.given("part", request.part).positive()?;
    let latency = sheet.given("first_byte", request.first_byte).positive()?;
    let stream = sheet.given("stream_rate", request.stream_rate).positive()?;
    let put_limit = sheet.given("put_limit", request.put_limit).positive()?;
    let get_limit = sheet.given("get_limit", request.get_limit).positive()?;
    let store = Store {
        part,
        latency,
        stream,
    };
    let names = [
        "get_per_second",
        "get_prefixes",
        "read_streams",
        "read_in_flight",
        "read_connections",
    ];
    requests(sheet, store, read, get_limit, names)?;
    let names = [
        "put_per_second",
        "put_prefixes",
        "write_streams",
        "write_in_flight",
        "write_connections",
    ];
    requests(sheet, store, write, put_limit, names)?;
    if let Some(objects) = sheet.maybe("objects", request.objects) {
        let rate = sheet.given("get_rate", request.get_rate).positive()?;
        let time = objects.v / rate.v;
        let inputs = [objects, rate];
        sheet.seconds("get_time", time, "objects / get_rate", &inputs)?;
    }
    Ok(())
}

/// Drives that are fast enough and large enough for the reads, the writes and what is kept.
fn drives(sheet: &mut Sheet, request: &Request, [read, write, demand]: [Num; 3]) -> Result<Num> {
    sheet.group("drives");
    let rate = sheet.given("drive_rate", request.drive_rate).positive()?;
    let write_rate = sheet
        .given("drive_write_rate", request.drive_write_rate)
        .positive()?;
    let fast = ceil(read.v / rate.v + write.v / write_rate.v);
    let inputs = [read, rate, write, write_rate];
    let formula = "ceil(read / drive_rate + write / drive_write_rate)";
    let fast = sheet.count("drives_for_rate", fast, formula, &inputs)?;
    let kept = sheet.given("capacity", request.capacity);
    let room = sheet.given("drive_capacity", request.drive_capacity).positive()?;
    let formula = "ceil(capacity / drive_capacity)";
    let large = ceil(kept.v / room.v);
    let large = sheet.count("drives_for_capacity", large, formula, &[kept, room])?;
    let formula = "max(drives_for_rate, drives_for_capacity)";
    let needed = sheet.count("drives_needed", fast.v.max(large.v), formula, &[fast, large])?;
    let volume = sheet.given("volume_rate", request.volume_rate).positive()?;
    let formula = "ceil(demand / volume_rate): network volumes in their place";
    let volumes = ceil(demand.v / volume.v);
    sheet.count("volumes_needed", volumes, formula, &[demand, volume])?;
    let in_flight = f64::from(NVME_QUEUES_MAX) * f64::from(NVME_QUEUE_COMMANDS_MAX);
    let formula = format!(
        "{NVME_QUEUES_MAX} x {NVME_QUEUE_COMMANDS_MAX}: queues and commands in each; AHCI has \
         {AHCI_QUEUES} x {AHCI_QUEUE_COMMANDS}"
    );
    let from = "NVM Express base specification";
    sheet
        .from(from)
        .count("nvme_commands_max", in_flight, &formula, &[])?;
    if let Some(traffic) = sheet.maybe("nvme_tcp", request.nvme_tcp) {
        let core = sheet.given("core_rate", request.core_rate).positive()?;
        let cores = ceil(traffic.v / core.v);
        let formula = "ceil(nvme_tcp / core_rate)";
        let inputs = [traffic, core];
        sheet
            .from(source::NVME_TCP)
            .count("nvme_tcp_cores", cores, formula, &inputs)?;
    }
    Ok(needed)
}

fn wear(sheet: &mut Sheet, request: &Request, needed: Num) -> Result<()> {
    let Some(nodes) = sheet.maybe("nodes", request.nodes) else {
        return Ok(());
    };
    let (Some(size), Some(interval)) = (request.checkpoint_size, request.checkpoint_interval) else {
        return Err(wrong(
            "the wear of drives needs to know what is written",
            "give checkpoint_size (980GB) and checkpoint_interval (30min) beside nodes",
        ));
    };
    let size = sheet.given("checkpoint_size", size).positive()?;
    let interval = sheet.given("checkpoint_interval", interval).positive()?;
    let per_node = sheet.given("drives_per_node", request.drives_per_node).whole()?;
    let capacity = sheet.given("drive_capacity", request.drive_capacity).positive()?;
    let rated = sheet.given("drive_dwpd", request.drive_dwpd).positive()?;
    let drives = nodes.whole()?.v * per_node.v;
    if drives < needed.v {
        let message = format!("{drives} drives are there, the demand needs {}", needed.v);
        sheet.warn("drives_needed", message);
    }
    let total = drives * capacity.v;
    let writes = size.v * SECONDS_PER_DAY / interval.v / total;
    let formula =
        "checkpoint_size x 86400 / checkpoint_interval / (nodes x drives_per_node x drive_capacity)";
    let inputs = [size, interval, nodes, per_node, capacity];
    let writes = sheet.factor("drive_writes_per_day", writes, formula, &inputs)?;
    let share = writes.v / rated.v;
    let formula = "drive_writes_per_day / drive_dwpd";
    let share = sheet.ratio("wear", share, formula, &[writes, rated])?;
    if share.v > 1.0 {
        let message = format!(
            "checkpoints alone wear the drives {} as fast as they are made for",
            share.text()
        );
        sheet.warn("wear", message);
    }
    if size.v > total {
        let message = format!(
            "a checkpoint of {} does not fit on the drives at all",
            size.text()
        );
        sheet.warn("wear", message);
    }
    Ok(())
}
