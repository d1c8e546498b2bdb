//! How evenly flows come out over equal backends, by the number of choices, the draw and the view.

use anyhow::Result;
use lb_common::abi::{draw, view};
use serde::Serialize;

use crate::fixture::{
    Kind, Net, Rig, Scene, Setup,
    placing::{HUNDRED, max_over_mean, place},
};

/// One way to place flows, and how they came out.
#[derive(Clone, Debug, Serialize)]
pub struct Spread {
    /// How many candidates are compared.
    pub choices: u8,
    /// What selects them: the flow or a random number.
    pub draw: &'static str,
    /// Which loads are compared.
    pub view: &'static str,
    /// The fullest backend, relative to the mean: the mean of all repetitions.
    pub max_over_mean: f64,
    /// The worst of them.
    pub worst: f64,
}

/// Places flows in each way, so many times.
pub fn spread(net: &Net, flows: usize, repetitions: u16) -> Result<Vec<Spread>> {
    let mut results = Vec::new();
    for (draw, draw_name) in [(draw::FLOW, "flow"), (draw::RANDOM, "random")] {
        for (view, view_name) in [(view::EXACT, "exact"), (view::PUBLISHED, "published")] {
            for choices in 1..=4 {
                let setup = Setup {
                    draw,
                    view,
                    choices,
                    ..HUNDRED
                };
                let ratios = (0..repetitions)
                    .map(|repetition| once(net, setup, flows, repetition))
                    .collect::<Result<Vec<_>>>()?;
                results.push(Spread {
                    choices,
                    draw: draw_name,
                    view: view_name,
                    max_over_mean: ratios.iter().sum::<f64>() / ratios.len() as f64,
                    worst: ratios.iter().copied().fold(0.0, f64::max),
                });
            }
        }
    }
    Ok(results)
}

fn once(net: &Net, setup: Setup, flows: usize, repetition: u16) -> Result<f64> {
    net.netns.run(|| {
        let scene = Scene {
            kind: Kind::Tcp4,
            setup,
        };
        let mut rig = Rig::new(net, scene)?;
        // Other ports make other flows.
        let counts = place(&mut rig, flows, 1024 + repetition * 10_000)?;
        rig.finish()?;
        Ok(max_over_mean(&counts))
    })
}
