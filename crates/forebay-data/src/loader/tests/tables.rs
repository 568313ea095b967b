//! Tables take room once per shard, and stay for the blocks to come within their part of the memory.

use super::*;

const ROOM_BYTES: u64 = 64 << 20;

fn reader(dataset: &Dataset, memory_bytes_max: u64) -> Reader {
    let pool = pool(1 << 20, None).unwrap();
    let sources = dataset.clone().into();
    let spec = StreamSpec {
        memory_bytes_max,
        ..StreamSpec::default()
    };
    let mut readers = readers(&sources, &spec, &[], &pool, &Cpu::new(1));
    readers.remove(0)
}

#[tokio::test]
async fn a_table_takes_room_once_while_somebody_uses_it() {
    let (dataset, _) = data_set(&[4000, 4000]).await;
    let room = Room::new(ROOM_BYTES);
    // No part of the memory for tables that nobody uses.
    let forgetful = reader(&dataset, 0);
    let first = forgetful.hold(0, Some(&room)).await.unwrap();
    let taken = ROOM_BYTES - room.left_bytes();
    assert!(taken >= 4000 * 32, "{taken}");
    let again = forgetful.hold(0, Some(&room)).await.unwrap();
    assert!(Arc::ptr_eq(first.table(), again.table()));
    assert_eq!(ROOM_BYTES - room.left_bytes(), taken, "once");
    let other = forgetful.hold(1, Some(&room)).await.unwrap();
    assert!(ROOM_BYTES - room.left_bytes() > taken + taken / 2, "another one");
    drop((first, other));
    assert_eq!(ROOM_BYTES - room.left_bytes(), taken, "the first is still used");
    drop(again);
    assert_eq!(room.left_bytes(), ROOM_BYTES);
}

#[tokio::test]
async fn the_tables_used_last_stay_within_their_part_of_the_memory() {
    let (dataset, _) = data_set(&[4000, 4000, 4000]).await;
    let room = Room::new(ROOM_BYTES);
    let keeping = reader(&dataset, ROOM_BYTES);
    drop(keeping.hold(0, Some(&room)).await.unwrap());
    let one = ROOM_BYTES - room.left_bytes();
    assert!(one > 0, "it stays");
    // A quarter of this is room for two of them and not for three.
    let two = reader(&dataset, 4 * (2 * one + one / 2));
    let room = Room::new(ROOM_BYTES);
    for shard in [0, 1, 2, 1, 2] {
        drop(two.hold(shard, Some(&room)).await.unwrap());
    }
    let kept = ROOM_BYTES - room.left_bytes();
    assert!(
        kept > one + one / 2 && kept <= 2 * one + one / 2,
        "{kept} of {one}"
    );
}
