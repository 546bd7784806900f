// SPDX-License-Identifier: Apache-2.0
// The register file by AXI4-Lite: any address, reads and writes at once, answers that wait. Settings read back what was written and
// reach their outputs; a refused write is counted and changes nothing; a command waits until it is taken, and a stop ends it.
module fide_regs_tb;
`include "fide_bench.svh"

  localparam int unsigned Members = 8, Paths = 2, Window = 8, ClkNs = 4;
  logic awvalid, awready, wvalid, wready, bvalid, bready, arvalid, arready, rvalid, rready, clear, cmd_valid, cmd_ready;
  logic [11:0] awaddr, araddr;
  logic [31:0] wdata, rdata;
  logic [1:0] bresp, rresp;
  logic [63:0] now;
  fide_lowi_pkg::state_t state;
  logic [15:0][2:0] drops;
  fide_lowi_pkg::cfg_t cfg;
  logic [Members:0][fide_lowi_pkg::DurW-1:0] wait_run, wait_start, wait_left;
  logic [511:0] base;
  logic [127:0] key;
  logic [Members-1:0][15:0] ids;
  logic [15:0] ids_valid;
  logic [31:0] retry, gap;
  logic [7:0] burst;
  fide_lowi_pkg::ev_t cmd;
  fide_regs #(.Members(Members), .Paths(Paths), .Window(Window), .ClkNs(ClkNs), .TagWords(1)) dut (
    .clk_i(clk), .rst_ni(rst_n),
    .s_axil_awvalid_i(awvalid), .s_axil_awready_o(awready), .s_axil_awaddr_i(awaddr),
    .s_axil_wvalid_i(wvalid), .s_axil_wready_o(wready), .s_axil_wdata_i(wdata),
    .s_axil_bvalid_o(bvalid), .s_axil_bready_i(bready), .s_axil_bresp_o(bresp),
    .s_axil_arvalid_i(arvalid), .s_axil_arready_o(arready), .s_axil_araddr_i(araddr),
    .s_axil_rvalid_o(rvalid), .s_axil_rready_i(rready), .s_axil_rdata_o(rdata), .s_axil_rresp_o(rresp),
    .time_i(now), .state_i(state), .drops_i(drops), .cfg_o(cfg), .wait_run_o(wait_run), .wait_start_o(wait_start),
    .wait_left_o(wait_left), .base_o(base), .key_o(key), .ids_o(ids), .ids_valid_o(ids_valid), .retry_ns_o(retry),
    .rate_gap_ns_o(gap), .rate_burst_o(burst), .clear_o(clear), .cmd_valid_o(cmd_valid), .cmd_o(cmd), .cmd_ready_i(cmd_ready)
  );

  // Settings as they should be, by word; the key too, though it cannot be read.
  logic [31:0] shadow [1024];
  logic [31:0] counts [16];
  logic [31:0] refused;
  logic waits;

  function automatic logic is_wait(input int unsigned at);
    is_wait = (at >= 12'h200 && at < 12'h200 + 8 * (Members + 1)) || (at >= 12'h300 && at < 12'h300 + 8 * (Members + 1)) ||
              (at >= 12'h400 && at < 12'h400 + 8 * (Members + 1));
  endfunction
  function automatic logic is_setting(input int unsigned at);
    is_setting = at inside {12'h010, 12'h014, 12'h018, 12'h01c, 12'h028, 12'h02c, 12'h030, 12'h038, 12'h03c, 12'h040, 12'h044,
                            12'h048, 12'h04c, 12'h050, 12'h054, 12'h058} ||
                 (at >= 12'h100 && at < 12'h160) || is_wait(at);
  endfunction
  function automatic logic is_free(input int unsigned at);
    is_free = at inside {12'h028, 12'h02c, 12'h030, 12'h040, 12'h044};
  endfunction
  // Whether a write must be taken: docs/hardware.md, "Registers".
  function automatic logic takes(input int unsigned at, input logic [31:0] value);
    takes = 1'b0;
    if (at == 12'h008) takes = value == 4 || (!waits && (state.running ? value == 5 : value inside {1, 2, 3}));
    else if (at == 12'h020) takes = state.running && !waits && value < Members;
    else if (at == 12'h024) takes = state.running && !waits && value != 0 && value < (1 << Members);
    else if (is_free(at)) takes = at != 12'h030 || (value != 0 && value < 256);
    else if (state.running) takes = 1'b0;
    else if (at == 12'h010) takes = value[3:0] < Members && value[15:8] != 0 && value[15:8] < (1 << Paths);
    else if (at == 12'h01c) takes = value <= 333_333;
    else if (at == 12'h014 || at == 12'h018) takes = value < (1 << Members);
    else if (at == 12'h058) takes = value < Members;
    else takes = is_setting(at) || (at >= 12'h080 && at < 12'h090);
  endfunction
  function automatic logic is_long(input int unsigned at);
    is_long = at inside {12'h038, 12'h040, 12'h048, 12'h050, 12'h060, 12'h068, 12'h070, 12'h078} || (is_wait(at) && !at[2]);
  endfunction
  logic [31:0] high;
  task automatic expect_read(input int unsigned at, output logic found, output logic [31:0] value);
    logic [31:0] high_before;
    high_before = high;
    found = 1'b1;
    value = shadow[at / 4];
    // The upper half of the last low word that was read; of a register of 32 bits it is 0.
    if (!at[2]) high = '0;
    case (at)
      12'h000: value = 32'hf1de_0201;
      12'h004: value = {4'd1, 8'(ClkNs), 8'(Window), 4'(Paths), 8'(Members)};
      12'h00c: value = {16'd0, waits, state.unsettled, state.heard, state.awaiting, state.leader, 2'b0, state.has_leader, state.leads,
                        state.halted, state.running};
      12'h034: value = refused;
      12'h05c: value = state.refused;
      12'h060: {high, value} = state.round;
      12'h068: {high, value} = state.next;
      12'h070: {high, value} = state.decided;
      12'h078: {high, value} = now;
      12'h064, 12'h06c, 12'h074, 12'h07c: value = high;
      default: begin
        if (at >= 12'h0c0 && at < 12'h100) value = counts[(at - 12'h0c0) / 4];
        else if (!is_setting(at)) {found, value} = '0;
        else if (is_long(at)) high = shadow[at / 4 + 1];
        else if (is_long(at - 4) && at[2]) value = high;
        else if (at >= 12'h140 && at < 12'h140 + 4 * Members) value = 32'(16'(value));
        else if (at >= 12'h140 && at < 12'h160) {found, value} = '0;
      end
    endcase
    if (!found) high = high_before;
  endtask

  function automatic int unsigned address;
    int unsigned dice;
    dice = below(8);
    case (dice)
      0: address = 4 * below(1024);
      1: address = 12'h008;
      2: address = (below(2) == 0) ? 12'h020 : 12'h024;
      3: address = 12'h100 + 4 * below(24);
      4: address = 12'h200 + 12'h100 * below(3) + 4 * below(20);
      5: address = 12'h0c0 + 4 * below(16);
      default: address = 4 * below(40);
    endcase
  endfunction
  function automatic logic [31:0] value_for(input int unsigned at);
    int unsigned dice;
    dice = below(4);
    case (dice)
      0: value_for = $urandom();
      1: value_for = below(8);
      default: value_for = (at == 12'h010) ? {12'd0, 4'(below(16)), 6'd0, 2'(1 + below(3)), 4'd0, 4'(below(8))} : below(300);
    endcase
  endfunction

  logic found, taken, pending_b, pending_r;
  logic [1:0] want_b;
  logic [31:0] want_r, value;
  logic want_found;
  int unsigned stops = 0, commands = 0;
  initial begin
    {awvalid, wvalid, bready, arvalid, rready, cmd_ready, drops, state, awaddr, araddr, wdata} = '0;
    now = 64'd5;
    for (int unsigned i = 0; i < 1024; i++) shadow[i] = '0;
    for (int unsigned i = 0; i < 16; i++) counts[i] = '0;
    shadow[4] = 32'h100;
    shadow[10] = 32'd1000;
    shadow[12] = 32'd1;
    shadow[20] = 32'd1;
    {refused, waits, pending_b, pending_r, high} = '0;
    reset();
    for (int unsigned n = 0; n < 60_000; n++) begin
      now = one_in(10) ? draw64() : now + ClkNs;
      if (n % 500 == 0) state.running = one_in(2);
      if (one_in(20)) begin
        state.halted = fide_lowi_pkg::halt_e'(below(6));
        {state.leads, state.has_leader, state.awaiting, state.heard, state.unsettled} = 5'($urandom());
        state.leader = 4'($urandom());
        {state.round, state.next, state.decided, state.refused} = {draw64(), draw64(), draw64(), $urandom()};
      end
      for (int unsigned i = 0; i < 16; i++) drops[i] = one_in(6) ? 3'($urandom()) : 3'd0;
      // Address and data come at once, or one of them waits.
      if (!awvalid) awaddr = 12'(address());
      if (!wvalid) wdata = value_for(32'(awaddr));
      awvalid = awvalid || one_in(2);
      wvalid = wvalid || one_in(2);
      arvalid = arvalid || one_in(2);
      if (!pending_r && !arready) araddr = 12'(address());
      {bready, rready, cmd_ready} = 3'($urandom());
      cmd_ready = cmd_ready && waits;
      settle();
      `CHECK(bvalid == pending_b, "an answer for each write")
      if (bvalid) `CHECK(bresp == want_b, "a write is taken, or refused")
      `CHECK(rvalid == pending_r, "an answer for each read")
      if (rvalid) `CHECK(rresp == (want_found ? 2'b00 : 2'b10), "a read of what there is")
      if (rvalid && want_found) `CHECK(rdata == want_r, "the register's value")
      `CHECK(cmd_valid == waits, "a command waits until it is taken")
      `CHECK(retry == shadow[10] && gap == shadow[11] && burst == shadow[12][7:0], "outputs follow their registers")
      `CHECK(cfg.me == shadow[4][3:0] && cfg.members == shadow[5][15:0] && cfg.drift_step == shadow[7][19:0], "settings")
      `CHECK(cfg.flight_ns == {shadow[15][15:0], shadow[14]} && cfg.late_ns == {shadow[17][15:0], shadow[16]}, "times")
      `CHECK(cfg.begin_round == {shadow[19], shadow[18]} && cfg.begin_next == {shadow[21], shadow[20]}, "where it begins")
      for (int unsigned i = 0; i < 16; i++) `CHECK(base[32*i +: 32] == shadow[64 + i], "the first word")
      for (int unsigned i = 0; i < 4; i++) `CHECK(key[32*i +: 32] == shadow[32 + i], "the key")
      for (int unsigned i = 0; i < Members; i++) `CHECK(ids[i] == shadow[80 + i][15:0], "ids")
      for (int unsigned i = 0; i <= Members; i++) begin
        `CHECK(wait_run[i] == {shadow[128 + 2*i + 1][15:0], shadow[128 + 2*i]}, "waits")
        `CHECK(wait_start[i] == {shadow[192 + 2*i + 1][15:0], shadow[192 + 2*i]}, "waits before the first round")
        `CHECK(wait_left[i] == {shadow[256 + 2*i + 1][15:0], shadow[256 + 2*i]}, "waits behind a leave")
      end
      // What the rising edge does.
      taken = 1'b0;
      if (arvalid && arready) begin
        expect_read(32'({araddr[11:2], 2'b00}), want_found, want_r);
      end
      if (awvalid && awready) begin
        `CHECK(wvalid && wready && !pending_b, "address and data are taken together")
        taken = takes(32'({awaddr[11:2], 2'b00}), wdata);
      end
      if (arvalid && arready) pending_r = 1'b1;
      else if (rready) pending_r = 1'b0;
      if (bready) pending_b = 1'b0;
      value = wdata;
      found = waits && cmd_ready;
      if (found) commands++;
      if (found) waits = 1'b0;
      if (awvalid && awready) begin
        pending_b = 1'b1;
        want_b = taken ? 2'b00 : 2'b10;
        if (!taken) refused++;
        else if (awaddr[11:2] == 10'h002) begin
          waits = wdata != 4;
          stops += 32'(wdata == 4);
        end else if (awaddr[11:2] inside {10'h008, 10'h009}) waits = 1'b1;
        else if (is_wait(32'({awaddr[11:2], 2'b00})) && awaddr[2]) shadow[awaddr[11:2]] = 32'(wdata[15:0]);
        else if (32'(awaddr) < 12'h140 || 32'(awaddr) >= 12'h160 || 32'(awaddr) < 12'h140 + 4 * Members) shadow[awaddr[11:2]] = value;
      end
      for (int unsigned i = 0; i < 16; i++) counts[i] += 32'(drops[i]);
      taken = taken && awaddr[11:2] == 10'h002 && wdata == 4;
      found = awvalid && awready;
      if (arvalid && arready) begin
        tick();
        arvalid = 1'b0;
      end else tick();
      if (found) {awvalid, wvalid} = '0;
      `CHECK(clear == taken, "a stop clears for one clock")
      if (waits && cmd_valid && found) `CHECK(cmd.kind inside {fide_lowi_pkg::EvStart, fide_lowi_pkg::EvFault, fide_lowi_pkg::EvCrash,
                                                               fide_lowi_pkg::EvMembers}, "a command is one of these")
    end
    `CHECK(stops > 50 && commands > 100 && refused > 1_000, "stops, commands and refusals were there")
    done("fide_regs");
  end
endmodule
