//! Packet fixtures on the loaded program, by topic. What each shows stands in its `says`.

mod choice;
mod decap;
mod drops;
mod full;
mod icmp;
mod one_way;
mod pass;
mod rewrite;
mod route;
mod slots;
mod spread;
mod state;
mod upkeep;

use lb_tests::{
    fixture::Net,
    harness::{self, MadeTest},
};

fn main() {
    let topics = [
        ("rewrite", rewrite::FIXTURES),
        ("choice", choice::FIXTURES),
        ("state", state::FIXTURES),
        ("pass", pass::FIXTURES),
        ("drops", drops::FIXTURES),
        ("route", route::FIXTURES),
        ("slots", slots::FIXTURES),
        ("full", full::FIXTURES),
        ("icmp", icmp::FIXTURES),
        ("one_way", one_way::LIVES),
        ("one_way", one_way::FIXTURES),
    ];
    let mut tests: Vec<MadeTest> = Vec::new();
    for (topic, fixtures) in topics {
        for fixture in fixtures {
            for &kind in fixture.kinds {
                let name = format!("{topic}::{}::{}", fixture.name, kind.name());
                tests.push((name, Box::new(move || fixture.run(&*Net::shared()?, kind))));
            }
        }
    }
    for (topic, made) in [
        ("spread", &[spread::TESTS] as &[_]),
        ("upkeep", &[upkeep::TESTS]),
        ("decap", decap::TESTS),
    ] {
        for &(name, test) in made.iter().copied().flatten() {
            tests.push((format!("{topic}::{name}"), Box::new(test)));
        }
    }
    harness::run_made(tests).exit()
}
