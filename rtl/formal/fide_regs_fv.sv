// SPDX-License-Identifier: Apache-2.0
// The register file keeps the rules of AXI4-Lite; a write that is refused changes nothing but the count of
// refused writes; settings stand while the engine runs; a command stays until the core takes it. By
// induction, for any writes and reads.
module fide_regs_fv (
  input logic         clk_i,
  input logic         rst_ni,
  input logic         awvalid_i,
  input logic [11:0]  awaddr_i,
  input logic         wvalid_i,
  input logic [31:0]  wdata_i,
  input logic         bready_i,
  input logic         arvalid_i,
  input logic [11:0]  araddr_i,
  input logic         rready_i,
  input logic [63:0]  time_i,
  input fide_lowi_pkg::state_t state_i,
  input logic [15:0][2:0] drops_i,
  input logic         cmd_ready_i
);
  logic awready, wready, bvalid, arready, rvalid, clear, cmd_valid;
  logic [1:0] bresp, rresp;
  logic [31:0] rdata, retry, gap;
  logic [7:0] burst;
  fide_lowi_pkg::cfg_t cfg;
  logic [2:0][fide_lowi_pkg::DurW-1:0] wait_run, wait_start, wait_left;
  logic [511:0] base;
  logic [127:0] key;
  logic [1:0][15:0] ids;
  logic [15:0] ids_valid;
  fide_lowi_pkg::ev_t cmd;
  fide_regs #(.Members(2), .Paths(2)) u_regs (
    .clk_i, .rst_ni, .s_axil_awvalid_i(awvalid_i), .s_axil_awready_o(awready), .s_axil_awaddr_i(awaddr_i),
    .s_axil_wvalid_i(wvalid_i), .s_axil_wready_o(wready), .s_axil_wdata_i(wdata_i), .s_axil_bvalid_o(bvalid),
    .s_axil_bready_i(bready_i), .s_axil_bresp_o(bresp), .s_axil_arvalid_i(arvalid_i), .s_axil_arready_o(arready),
    .s_axil_araddr_i(araddr_i), .s_axil_rvalid_o(rvalid), .s_axil_rready_i(rready_i), .s_axil_rdata_o(rdata),
    .s_axil_rresp_o(rresp), .time_i, .state_i, .drops_i, .cfg_o(cfg), .wait_run_o(wait_run),
    .wait_start_o(wait_start), .wait_left_o(wait_left), .base_o(base), .key_o(key), .ids_o(ids),
    .ids_valid_o(ids_valid), .retry_ns_o(retry), .rate_gap_ns_o(gap), .rate_burst_o(burst), .clear_o(clear),
    .cmd_valid_o(cmd_valid), .cmd_o(cmd), .cmd_ready_i
  );

  // Settings that are locked while the engine runs, and all of them.
  fide_lowi_pkg::cfg_t fixed;
  always_comb begin
    fixed = cfg;
    fixed.late_ns = '0;
  end
  localparam int unsigned LockedW = 309 + 9 * fide_lowi_pkg::DurW + 512 + 128 + 32 + 16;
  logic [LockedW-1:0] locked, locked_q;
  logic [119:0] open, open_q;
  assign locked = LockedW'({fixed, wait_run, wait_start, wait_left, base, key, ids, ids_valid});
  assign open   = {cfg.late_ns, retry, gap, burst};

  logic past_q = 1'b0;
  logic taken_q, read_q, running_q, cmd_valid_q, cmd_ready_q, bwaits_q, rwaits_q;
  logic [1:0] bresp_q, rresp_q;
  logic [31:0] rdata_q;
  fide_lowi_pkg::ev_t cmd_q;
  always_ff @(posedge clk_i) begin
    past_q <= 1'b1;
    taken_q <= rst_ni && awvalid_i && awready;
    read_q <= rst_ni && arvalid_i && arready;
    bwaits_q <= rst_ni && bvalid && !bready_i;
    rwaits_q <= rst_ni && rvalid && !rready_i;
    bresp_q <= bresp;
    rresp_q <= rresp;
    rdata_q <= rdata;
    running_q <= state_i.running;
    cmd_valid_q <= rst_ni && cmd_valid;
    cmd_ready_q <= cmd_ready_i;
    cmd_q <= cmd;
    locked_q <= locked;
    open_q <= open;
  end
  always_comb begin
    assume (rst_ni == past_q);
    // The core takes a command that is there.
    assume (!cmd_ready_i || cmd_valid);
    if (past_q) begin
      both_or_none: assert (awready == wready && (!awready || (awvalid_i && wvalid_i)));
      one_write_at_a_time: assert (!(awready && bvalid));
      b_stays: assert (!bwaits_q || (bvalid && bresp == bresp_q));
      b_answers: assert (bvalid == (taken_q || bwaits_q));
      r_stays: assert (!rwaits_q || (rvalid && rresp == rresp_q && rdata == rdata_q));
      r_answers: assert (rvalid == (read_q || rwaits_q));
      no_read_is_lost: assert (!(arready && rvalid && !rready_i));
      resp: assert (!bvalid || bresp == 2'b00 || bresp == 2'b10);
    end
    if (past_q && taken_q && bresp == 2'b10) begin
      refused_changes_nothing: assert (locked == locked_q && open == open_q && !clear && (!cmd_valid || cmd_valid_q));
    end
    if (past_q && !taken_q && bwaits_q) nothing_by_itself: assert (locked == locked_q && open == open_q);
    if (past_q && running_q && taken_q) locked_while_running: assert (locked == locked_q);
    if (past_q && cmd_valid_q && !cmd_ready_q && !clear) begin
      command_stays: assert (cmd_valid && cmd == cmd_q);
    end
    if (past_q && clear) stop_takes_the_command: assert (!cmd_valid);
  end
endmodule
