// SPDX-License-Identifier: Apache-2.0
// Generated from rtl/registers.toml by `cargo xtask gen`. Do not edit.
package fide_reg_pkg;

  localparam int unsigned ID_AT = 0;
  localparam int unsigned PARAMS_AT = 4;
  localparam int unsigned PARAMS_CLK_NS = 20;
  localparam int unsigned PARAMS_MEMBERS = 0;
  localparam int unsigned PARAMS_PATHS = 8;
  localparam int unsigned PARAMS_TAG_WORDS = 28;
  localparam int unsigned PARAMS_WINDOW = 12;
  localparam int unsigned COMMAND_AT = 8;
  localparam int unsigned STATUS_AT = 12;
  localparam int unsigned STATUS_AWAITING = 12;
  localparam int unsigned STATUS_COMMAND_WAITS = 15;
  localparam int unsigned STATUS_HALTED = 1;
  localparam int unsigned STATUS_HAS_LEADER = 5;
  localparam int unsigned STATUS_HEARD = 13;
  localparam int unsigned STATUS_LEADER = 8;
  localparam int unsigned STATUS_LEADS = 4;
  localparam int unsigned STATUS_RUNNING = 0;
  localparam int unsigned STATUS_UNSETTLED = 14;
  localparam int unsigned CONFIG_AT = 16;
  localparam int unsigned CONFIG_DEPTH = 16;
  localparam int unsigned CONFIG_EXIT_TOGETHER = 19;
  localparam int unsigned CONFIG_HURRY = 18;
  localparam int unsigned CONFIG_ME = 0;
  localparam int unsigned CONFIG_PATHS = 8;
  localparam int unsigned MEMBERS_AT = 20;
  localparam int unsigned IDS_VALID_AT = 24;
  localparam int unsigned DRIFT_AT = 28;
  localparam int unsigned CRASH_AT = 32;
  localparam int unsigned SET_MEMBERS_AT = 36;
  localparam int unsigned RETRY_AT = 40;
  localparam int unsigned RATE_GAP_AT = 44;
  localparam int unsigned RATE_BURST_AT = 48;
  localparam int unsigned REFUSED_WRITES_AT = 52;
  localparam int unsigned FLIGHT_AT = 56;
  localparam int unsigned LATE_AT = 64;
  localparam int unsigned BEGIN_ROUND_AT = 72;
  localparam int unsigned BEGIN_NEXT_AT = 80;
  localparam int unsigned BEGIN_LEADER_AT = 88;
  localparam int unsigned REFUSED_AT = 92;
  localparam int unsigned ROUND_AT = 96;
  localparam int unsigned NEXT_AT = 104;
  localparam int unsigned DECIDED_AT = 112;
  localparam int unsigned TIME_AT = 120;
  localparam int unsigned KEY_AT = 128;
  localparam int unsigned DROPPED_AT = 192;
  localparam int unsigned BASE_AT = 256;
  localparam int unsigned IDS_AT = 320;
  localparam int unsigned WAIT_RUN_AT = 512;
  localparam int unsigned WAIT_START_AT = 768;
  localparam int unsigned WAIT_LEFT_AT = 1024;

endpackage
