//! Sending policy: pacing, paths, contract, calibration, profiles.
