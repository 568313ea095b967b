//! Several data sets at once: shares, worlds, resuming, and what does not fit.

use super::*;

/// Numbers of the second data set begin here.
const OTHER: u32 = 10_000;

async fn sources(weights: [f64; 2]) -> Sources {
    let (first, _) = data_set(&SIZES).await;
    let (second, _) = data_set_from(OTHER, &[90, 110]).await;
    Sources::mixed(vec![first, second], Some(weights.to_vec())).unwrap()
}

async fn mixed(sources: &Sources, spec: &StreamSpec) -> Vec<Numbers> {
    drain(&mut Loader::new(sources.clone(), spec).unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn shares_hold_after_every_batch_and_samples_come_equally_often() {
    let sources = sources([3.0, 1.0]).await;
    let mut long = spec(1, 0);
    long.epochs = Some(6);
    let mut loader = Loader::new(sources.clone(), &long).unwrap();
    assert_eq!(loader.batches(), 701 / 24);
    let batches = drain(&mut loader).await;
    assert_eq!(batches.len(), 6 * (701 / 24));
    let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
    let mut drawn = [0u32; 2];
    for (done, batch) in (1u32..).zip(&batches) {
        for number in batch {
            drawn[usize::from(*number >= OTHER)] += 1;
            *counts.entry(*number).or_default() += 1;
        }
        let wanted = f64::from(done * 24) / 4.0;
        assert!(
            (f64::from(drawn[1]) - wanted).abs() < 1.0,
            "{drawn:?} after {done} batches"
        );
    }
    for (first, last, len) in [(0, OTHER, 501), (OTHER, u32::MAX, 200)] {
        let counts: Vec<u32> = counts.range(first..last).map(|(_, count)| *count).collect();
        assert_eq!(counts.len(), len, "every sample came");
        assert!(
            counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 2,
            "{counts:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mixtures_are_the_same_at_every_world_size_and_after_resuming() {
    let sources = sources([0.3, 0.7]).await;
    let whole = mixed(&sources, &spec(1, 0)).await;
    assert_eq!(whole.len(), 2 * (701 / 24));
    for world in [2, 8] {
        let mut joined: Vec<Numbers> = vec![Vec::new(); whole.len()];
        for rank in 0..world {
            let batches = mixed(&sources, &spec(world, rank)).await;
            for (all, own) in joined.iter_mut().zip(batches) {
                all.extend(own);
            }
        }
        assert_eq!(joined, whole, "world {world}");
    }
    let mut loader = Loader::new(sources.clone(), &spec(1, 0)).unwrap();
    for done in 0..=whole.len() {
        if done % 9 == 4 || done == whole.len() {
            let position = Position::from_json(&loader.position().to_json().unwrap()).unwrap();
            let mut again = Loader::resume(sources.clone(), &spec(1, 0), &position).unwrap();
            assert_eq!(drain(&mut again).await, whole[done..], "after {done}");
            let mut part = Loader::resume(sources.clone(), &spec(4, 3), &position).unwrap();
            for (part, all) in drain(&mut part).await.iter().zip(&whole[done..]) {
                assert_eq!(part[..], all[18..], "after {done}");
            }
        }
        let next = loader.next_batch().await;
        assert_eq!(next.is_none(), done == whole.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_a_data_set_can_be_mixed_and_the_limit_ends_an_epoch() {
    let mut sources = sources([1.0, 1.0]).await;
    let progress: Arc<dyn crate::dataset::Progress> = Arc::new(crate::dataset::Silent);
    let filter = crate::filter::Filter::parse("number < 100").unwrap();
    sources.datasets[0] = sources.datasets[0]
        .keep(&filter, 2, 8 << 20, &progress)
        .await
        .unwrap();
    let mut limited = spec(1, 0);
    limited.order.limit = Some(100);
    let batches = mixed(&sources, &limited).await;
    assert_eq!(batches.len(), 2 * (100 / 24));
    let numbers = batches.concat();
    assert!(numbers.iter().all(|number| *number < 100 || *number >= OTHER));
    let share = numbers.iter().filter(|number| **number < 100).count();
    assert_eq!(share * 2, numbers.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_are_numbered_one_data_set_after_the_other() {
    let sources = sources([1.0, 1.0]).await;
    let name = |number| Some(sources.shard(number)?.1.key.to_string());
    assert_eq!(name(5).as_deref(), Some("005"));
    assert_eq!(name(7).as_deref(), Some("001"));
    assert_eq!(name(8), None);
    let proportional = Sources::mixed(sources.datasets().to_vec(), None).unwrap();
    assert_eq!(proportional.weights, Some(vec![501.0, 200.0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_mixed_is_refused_with_advice() {
    let both = sources([1.0, 1.0]).await;
    let refused = |sources: &Sources, spec: &StreamSpec| Loader::new(sources.clone(), spec).unwrap_err();
    let mut lined = spec(1, 0);
    lined.order.shuffle = false;
    assert!(refused(&both, &lined).to_string().contains("is not shuffled"));
    assert!(Sources::mixed(both.datasets().to_vec(), Some(vec![1.0])).is_err());
    let zero = Sources::mixed(both.datasets().to_vec(), Some(vec![1.0, 0.0])).unwrap();
    assert!(refused(&zero, &spec(1, 0)).hint().unwrap().contains("above 0"));

    let mut loader = Loader::new(both.clone(), &spec(1, 0)).unwrap();
    loader.next_batch().await.unwrap().unwrap();
    let position = loader.position();
    let other = sources([1.0, 2.0]).await;
    let error = Loader::resume(other, &spec(1, 0), &position).unwrap_err();
    assert!(error.to_string().contains("its weight"), "{error}");
    let alone = both.datasets()[0].clone();
    let error = Loader::resume(alone.clone(), &spec(1, 0), &position).unwrap_err();
    assert!(error.to_string().contains("of a mixture"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_must_be_in_common() {
    let both = sources([1.0, 1.0]).await;
    let (numbers, _) = numbered_only(&[100]).await;
    let full = both.datasets()[0].clone();
    let turned = Sources::mixed(vec![numbers.clone(), full.clone()], None).unwrap();
    let uneven = Sources::mixed(vec![full, numbers], None).unwrap();
    for sources in [&uneven, &turned] {
        let error = Loader::new(sources.clone(), &spec(1, 0)).unwrap_err();
        assert!(
            error.to_string().contains("not all data sets have a field"),
            "{error}"
        );
        assert!(error.hint().unwrap().contains("in common: number"), "{error:?}");
    }
    let mut some = spec(1, 0);
    some.fields = Some(vec!["number".to_owned()]);
    let mut loader = Loader::new(uneven, &some).unwrap();
    let mut seen = [0; 2];
    while let Some(batch) = loader.next_batch().await {
        let batch = batch.unwrap();
        for row in 0..batch.len() {
            let value = batch.value(&batch.fields()[0], row).unwrap();
            let value = u32::from_le_bytes(value.try_into().unwrap());
            // In the second data set the field has another place.
            seen[usize::from(value >= OTHER)] += 1;
            assert!(value < 501 || (OTHER..OTHER + 100).contains(&value), "{value}");
        }
    }
    assert!(seen[0] > 4 * seen[1] && seen[1] > 0, "{seen:?}");
}
