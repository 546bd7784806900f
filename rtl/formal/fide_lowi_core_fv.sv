// SPDX-License-Identifier: Apache-2.0
// The core, by induction, for any events, times and settings: no instance is decided twice, or out of
// order; no timer is ever past its time-out when something is done with what it guards. The properties
// are in fide_lowi_core_fv.svh, inside the core; here is what its surroundings keep to.
module fide_lowi_core_fv (
  input logic         clk_i,
  input logic         rst_ni,
  input logic         clear_i,
  input logic [63:0]  time_i,
  input fide_lowi_pkg::cfg_t cfg_i,
  input logic [2:0][fide_lowi_pkg::DurW-1:0] wait_run_i,
  input logic [2:0][fide_lowi_pkg::DurW-1:0] wait_start_i,
  input logic [2:0][fide_lowi_pkg::DurW-1:0] wait_left_i,
  input logic         ev_valid_i,
  input fide_lowi_pkg::ev_t ev_i,
  input logic         req_valid_i,
  input logic         req_barrier_i,
  input logic         left_i
);
  logic ev_ready, speak_valid, decide_valid, free_valid;
  fide_lowi_pkg::speak_t speak;
  fide_lowi_pkg::decide_t decide;
  logic [fide_lowi_pkg::BufW-1:0] free_buffer;
  fide_lowi_pkg::state_t state;
  fide_lowi_core #(.Members(2), .Paths(2), .Flights(2), .Window(2), .ClkNs(4)) u_core (
    .clk_i, .rst_ni, .clear_i, .time_i, .cfg_i, .wait_run_i, .wait_start_i, .wait_left_i,
    .ev_valid_i, .ev_i, .ev_ready_o(ev_ready), .req_valid_i, .req_barrier_i,
    .speak_valid_o(speak_valid), .speak_o(speak), .left_i, .decide_valid_o(decide_valid), .decide_o(decide),
    .free_valid_o(free_valid), .free_buffer_o(free_buffer), .state_o(state)
  );

  logic past_q = 1'b0;
  logic [63:0] time_q;
  fide_lowi_pkg::cfg_t cfg_q, locked;
  always_comb begin
    locked = cfg_q;
    locked.late_ns = cfg_i.late_ns;
  end
  always_ff @(posedge clk_i) begin
    past_q <= 1'b1;
    time_q <= time_i;
    cfg_q <= cfg_i;
  end
  always_comb begin
    assume (rst_ni == past_q);
    // The NIC's clock never goes back, and nothing here lives for 146 years.
    assume (time_i < 64'h4000_0000_0000_0000 && (!past_q || time_i >= time_q));
    // Settings are locked while it runs, but for LATE.
    if (past_q) assume (cfg_i == locked || !state.running);
    assume (cfg_i.begin_next != '0 && cfg_i.me < 4'd2 && cfg_i.begin_leader < 4'd2);
    assume (ev_i.rank < 4'd2 && ev_i.path < 3'd2);
    assume (cfg_i.begin_next < 64'h4000_0000_0000_0000 && cfg_i.begin_round < 64'h4000_0000_0000_0000);
  end
endmodule
