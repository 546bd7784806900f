// SPDX-License-Identifier: Apache-2.0
// The register file (AXI4-Lite, 32 bits). Addresses come from registers.toml. Writes that are refused get
// SLVERR, are counted and change nothing.
module fide_regs
#(
  parameter int unsigned Members = 8,
  parameter int unsigned Paths   = 2,
  parameter int unsigned Window  = 8,
  parameter int unsigned ClkNs   = 4,
  parameter int unsigned TagWords = 1
) (
  input  logic         clk_i,
  input  logic         rst_ni,

  input  logic         s_axil_awvalid_i,
  output logic         s_axil_awready_o,
  input  logic [11:0]  s_axil_awaddr_i,
  input  logic         s_axil_wvalid_i,
  output logic         s_axil_wready_o,
  input  logic [31:0]  s_axil_wdata_i,
  output logic         s_axil_bvalid_o,
  input  logic         s_axil_bready_i,
  output logic [1:0]   s_axil_bresp_o,
  input  logic         s_axil_arvalid_i,
  output logic         s_axil_arready_o,
  input  logic [11:0]  s_axil_araddr_i,
  output logic         s_axil_rvalid_o,
  input  logic         s_axil_rready_i,
  output logic [31:0]  s_axil_rdata_o,
  output logic [1:0]   s_axil_rresp_o,

  input  logic [63:0]  time_i,
  input  fide_lowi_pkg::state_t state_i,
  input  logic [fide_lowi_pkg::Drops-1:0][2:0] drops_i,  // frames dropped in this clock, by reason

  output fide_lowi_pkg::cfg_t   cfg_o,
  output logic [Members:0][fide_lowi_pkg::DurW-1:0] wait_run_o,
  output logic [Members:0][fide_lowi_pkg::DurW-1:0] wait_start_o,
  output logic [Members:0][fide_lowi_pkg::DurW-1:0] wait_left_o,
  output logic [511:0] base_o,
  output logic [127:0] key_o,
  output logic [Members-1:0][15:0] ids_o,
  output logic [15:0]  ids_valid_o,
  output logic [31:0]  retry_ns_o,
  output logic [31:0]  rate_gap_ns_o,
  output logic [7:0]   rate_burst_o,

  output logic         clear_o,       // stop, for one clock
  output logic         cmd_valid_o,
  output fide_lowi_pkg::ev_t cmd_o,
  input  logic         cmd_ready_i
);

  localparam int unsigned WaitWords = 2 * (Members + 1);
  localparam int unsigned DurHighW = fide_lowi_pkg::DurW - 32;

  logic [31:0] config_q, members_q, ids_valid_q, drift_q, retry_q, gap_q, burst_q, begin_leader_q, refused_q;
  logic [63:0] flight_q, late_q, begin_round_q, begin_next_q;
  logic [15:0][31:0] base_q;
  logic [3:0][31:0] key_q;
  logic [Members-1:0][15:0] ids_q;
  logic [2:0][Members:0][fide_lowi_pkg::DurW-1:0] wait_q;
  logic [fide_lowi_pkg::Drops-1:0][31:0] dropped_q;
  logic [31:0] high_q;
  logic cmd_q;
  fide_lowi_pkg::ev_t cmd_ev_q;

  // Writes: address and data together.
  logic write, running, locked, ok;
  logic [11:0] waddr, raddr;
  logic [31:0] wdata;
  assign write = s_axil_awvalid_i && s_axil_wvalid_i && !s_axil_bvalid_o;
  assign s_axil_awready_o = write;
  assign s_axil_wready_o  = write;
  assign waddr   = {s_axil_awaddr_i[11:2], 2'b00};
  assign wdata   = s_axil_wdata_i;
  assign running = state_i.running;

  function automatic logic is_in(input logic [11:0] addr, input int unsigned at, input int unsigned words);
    is_in = 32'(addr) >= at && 32'(addr) < at + 4 * words;
  endfunction

  logic in_base, in_key, in_ids, in_run, in_start, in_left, in_wait, is_command, is_stop, command_ok;
  logic [9:0] wait_word;
  logic [1:0] wait_bank;
  assign in_base  = is_in(waddr, fide_reg_pkg::BASE_AT, 16);
  assign in_key   = is_in(waddr, fide_reg_pkg::KEY_AT, 4);
  assign in_ids   = is_in(waddr, fide_reg_pkg::IDS_AT, Members);
  assign in_run   = is_in(waddr, fide_reg_pkg::WAIT_RUN_AT, WaitWords);
  assign in_start = is_in(waddr, fide_reg_pkg::WAIT_START_AT, WaitWords);
  assign in_left  = is_in(waddr, fide_reg_pkg::WAIT_LEFT_AT, WaitWords);
  assign in_wait  = in_run || in_start || in_left;
  assign wait_bank = in_run ? 2'd0 : in_start ? 2'd1 : 2'd2;
  assign wait_word = 10'((32'(waddr) - (in_run ? fide_reg_pkg::WAIT_RUN_AT : in_start ? fide_reg_pkg::WAIT_START_AT
                                                                                      : fide_reg_pkg::WAIT_LEFT_AT)) >> 2);
  assign is_command = 32'(waddr) == fide_reg_pkg::COMMAND_AT;
  assign is_stop    = is_command && wdata == 32'd4;
  always_comb begin
    locked = 1'b1;
    ok = 1'b0;
    command_ok = !cmd_q && wdata != '0 && wdata <= 32'd5 && (wdata <= 32'd3) == !running;
    unique case (32'(waddr))
      fide_reg_pkg::COMMAND_AT: begin
        locked = 1'b0;
        ok = command_ok || is_stop;
      end
      fide_reg_pkg::CRASH_AT: begin
        locked = 1'b0;
        ok = running && !cmd_q && wdata < Members;
      end
      fide_reg_pkg::SET_MEMBERS_AT: begin
        locked = 1'b0;
        ok = running && !cmd_q && wdata != '0 && (wdata >> Members) == '0;
      end
      fide_reg_pkg::RETRY_AT, fide_reg_pkg::RATE_GAP_AT, fide_reg_pkg::LATE_AT, fide_reg_pkg::LATE_AT + 4: begin
        locked = 1'b0;
        ok = 1'b1;
      end
      fide_reg_pkg::RATE_BURST_AT: begin
        locked = 1'b0;
        ok = wdata != '0 && wdata < 32'd256;
      end
      fide_reg_pkg::DRIFT_AT: ok = wdata <= 32'd333_333;
      fide_reg_pkg::CONFIG_AT: ok = 32'(wdata[3:0]) < Members && wdata[15:8] != '0 && (32'(wdata[15:8]) >> Paths) == '0;
      fide_reg_pkg::MEMBERS_AT, fide_reg_pkg::IDS_VALID_AT: ok = (wdata >> Members) == '0;
      fide_reg_pkg::BEGIN_LEADER_AT: ok = wdata < Members;
      fide_reg_pkg::FLIGHT_AT, fide_reg_pkg::FLIGHT_AT + 4, fide_reg_pkg::BEGIN_ROUND_AT, fide_reg_pkg::BEGIN_ROUND_AT + 4,
      fide_reg_pkg::BEGIN_NEXT_AT, fide_reg_pkg::BEGIN_NEXT_AT + 4: ok = 1'b1;
      default: ok = in_base || in_key || in_ids || in_wait;
    endcase
    if (locked && running) ok = 1'b0;
  end

  logic [3:0] base_index;
  assign base_index = 4'((32'(waddr) - fide_reg_pkg::BASE_AT) >> 2);
  logic [$clog2(Members)-1:0] ids_index;
  assign ids_index = $clog2(Members)'((32'(waddr) - fide_reg_pkg::IDS_AT) >> 2);

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      s_axil_bvalid_o <= 1'b0;
      s_axil_bresp_o <= 2'b00;
      config_q <= 32'h0000_0100;
      members_q <= '0;
      ids_valid_q <= '0;
      drift_q <= '0;
      retry_q <= 32'd1000;
      gap_q <= '0;
      burst_q <= 32'd1;
      begin_leader_q <= '0;
      flight_q <= '0;
      late_q <= '0;
      begin_round_q <= '0;
      begin_next_q <= 64'd1;
      base_q <= '0;
      key_q <= '0;
      ids_q <= '0;
      wait_q <= '0;
      refused_q <= '0;
      cmd_q <= 1'b0;
      clear_o <= 1'b0;
    end else begin
      clear_o <= 1'b0;
      if (s_axil_bready_i) s_axil_bvalid_o <= 1'b0;
      if (cmd_ready_i) cmd_q <= 1'b0;
      if (write) begin
        s_axil_bvalid_o <= 1'b1;
        s_axil_bresp_o <= ok ? 2'b00 : 2'b10;
        if (!ok && refused_q != '1) refused_q <= refused_q + 1'b1;
        if (ok) begin
          unique case (32'(waddr))
            fide_reg_pkg::COMMAND_AT: begin
              clear_o <= is_stop;
              cmd_q <= !is_stop;
            end
            fide_reg_pkg::CRASH_AT, fide_reg_pkg::SET_MEMBERS_AT: cmd_q <= 1'b1;
            fide_reg_pkg::RETRY_AT: retry_q <= wdata;
            fide_reg_pkg::RATE_GAP_AT: gap_q <= wdata;
            fide_reg_pkg::RATE_BURST_AT: burst_q <= wdata;
            fide_reg_pkg::LATE_AT: late_q[31:0] <= wdata;
            fide_reg_pkg::LATE_AT + 4: late_q[63:32] <= wdata;
            fide_reg_pkg::DRIFT_AT: drift_q <= wdata;
            fide_reg_pkg::CONFIG_AT: config_q <= wdata;
            fide_reg_pkg::MEMBERS_AT: members_q <= wdata;
            fide_reg_pkg::IDS_VALID_AT: ids_valid_q <= wdata;
            fide_reg_pkg::BEGIN_LEADER_AT: begin_leader_q <= wdata;
            fide_reg_pkg::FLIGHT_AT: flight_q[31:0] <= wdata;
            fide_reg_pkg::FLIGHT_AT + 4: flight_q[63:32] <= wdata;
            fide_reg_pkg::BEGIN_ROUND_AT: begin_round_q[31:0] <= wdata;
            fide_reg_pkg::BEGIN_ROUND_AT + 4: begin_round_q[63:32] <= wdata;
            fide_reg_pkg::BEGIN_NEXT_AT: begin_next_q[31:0] <= wdata;
            fide_reg_pkg::BEGIN_NEXT_AT + 4: begin_next_q[63:32] <= wdata;
            default: begin
              if (in_base) base_q[base_index] <= wdata;
              if (in_key) key_q[waddr[3:2]] <= wdata;
              if (in_ids) ids_q[ids_index] <= wdata[15:0];
              for (int unsigned i = 0; i <= Members; i++) begin
                if (in_wait && wait_word == 10'(2 * i)) wait_q[wait_bank][i][31:0] <= wdata;
                if (in_wait && wait_word == 10'(2 * i + 1)) wait_q[wait_bank][i][32 +: DurHighW] <= wdata[DurHighW-1:0];
              end
            end
          endcase
        end
        if (is_stop) cmd_q <= 1'b0;
      end
    end
    // A setting that is written while a command waits leaves the command alone.
    if (write && ok && (is_command || 32'(waddr) == fide_reg_pkg::CRASH_AT || 32'(waddr) == fide_reg_pkg::SET_MEMBERS_AT)) begin
      cmd_ev_q <= '0;
      cmd_ev_q.kind <= fide_lowi_pkg::EvStart;
      cmd_ev_q.rank <= wdata[fide_lowi_pkg::RankW-1:0];
      cmd_ev_q.members <= wdata[15:0];
      cmd_ev_q.start <= (wdata == 32'd1) ? fide_lowi_pkg::StartTogether :
                        (wdata == 32'd2) ? fide_lowi_pkg::StartOnMessage : fide_lowi_pkg::StartJoin;
      if (is_command && wdata == 32'd5) cmd_ev_q.kind <= fide_lowi_pkg::EvFault;
      if (32'(waddr) == fide_reg_pkg::CRASH_AT) cmd_ev_q.kind <= fide_lowi_pkg::EvCrash;
      if (32'(waddr) == fide_reg_pkg::SET_MEMBERS_AT) cmd_ev_q.kind <= fide_lowi_pkg::EvMembers;
    end
    for (int unsigned i = 0; i < fide_lowi_pkg::Drops; i++) begin
      if (!rst_ni) dropped_q[i] <= '0;
      else dropped_q[i] <= dropped_q[i] + 32'(drops_i[i]);
    end
  end

  assign cmd_valid_o = cmd_q;
  assign cmd_o       = cmd_ev_q;

  // Reads.
  logic read;
  logic [31:0] status, rdata, rhigh;
  logic found;
  assign read  = s_axil_arvalid_i && (!s_axil_rvalid_o || s_axil_rready_i);
  assign s_axil_arready_o = read;
  assign raddr = {s_axil_araddr_i[11:2], 2'b00};
  always_comb begin
    status = '0;
    status[fide_reg_pkg::STATUS_RUNNING] = state_i.running;
    status[fide_reg_pkg::STATUS_HALTED +: 3] = state_i.halted;
    status[fide_reg_pkg::STATUS_LEADS] = state_i.leads;
    status[fide_reg_pkg::STATUS_HAS_LEADER] = state_i.has_leader;
    status[fide_reg_pkg::STATUS_LEADER +: 4] = state_i.leader;
    status[fide_reg_pkg::STATUS_AWAITING] = state_i.awaiting;
    status[fide_reg_pkg::STATUS_HEARD] = state_i.heard;
    status[fide_reg_pkg::STATUS_UNSETTLED] = state_i.unsettled;
    status[fide_reg_pkg::STATUS_COMMAND_WAITS] = cmd_q;
  end
  always_comb begin
    found = 1'b1;
    rdata = '0;
    rhigh = '0;
    unique case (32'(raddr))
      fide_reg_pkg::ID_AT: rdata = 32'hf1de_0201;
      fide_reg_pkg::PARAMS_AT: rdata = {4'(TagWords), 8'(ClkNs), 8'(Window), 4'(Paths), 8'(Members)};
      fide_reg_pkg::STATUS_AT: rdata = status;
      fide_reg_pkg::CONFIG_AT: rdata = config_q;
      fide_reg_pkg::MEMBERS_AT: rdata = members_q;
      fide_reg_pkg::IDS_VALID_AT: rdata = ids_valid_q;
      fide_reg_pkg::DRIFT_AT: rdata = drift_q;
      fide_reg_pkg::RETRY_AT: rdata = retry_q;
      fide_reg_pkg::RATE_GAP_AT: rdata = gap_q;
      fide_reg_pkg::RATE_BURST_AT: rdata = burst_q;
      fide_reg_pkg::REFUSED_WRITES_AT: rdata = refused_q;
      fide_reg_pkg::FLIGHT_AT: {rhigh, rdata} = flight_q;
      fide_reg_pkg::LATE_AT: {rhigh, rdata} = late_q;
      fide_reg_pkg::BEGIN_ROUND_AT: {rhigh, rdata} = begin_round_q;
      fide_reg_pkg::BEGIN_NEXT_AT: {rhigh, rdata} = begin_next_q;
      fide_reg_pkg::BEGIN_LEADER_AT: rdata = begin_leader_q;
      fide_reg_pkg::REFUSED_AT: rdata = state_i.refused;
      fide_reg_pkg::ROUND_AT: {rhigh, rdata} = state_i.round;
      fide_reg_pkg::NEXT_AT: {rhigh, rdata} = state_i.next;
      fide_reg_pkg::DECIDED_AT: {rhigh, rdata} = state_i.decided;
      fide_reg_pkg::TIME_AT: {rhigh, rdata} = time_i;
      fide_reg_pkg::FLIGHT_AT + 4, fide_reg_pkg::LATE_AT + 4, fide_reg_pkg::BEGIN_ROUND_AT + 4, fide_reg_pkg::BEGIN_NEXT_AT + 4,
      fide_reg_pkg::ROUND_AT + 4, fide_reg_pkg::NEXT_AT + 4, fide_reg_pkg::DECIDED_AT + 4, fide_reg_pkg::TIME_AT + 4:
        rdata = high_q;
      default: begin
        found = 1'b0;
        if (is_in(raddr, fide_reg_pkg::DROPPED_AT, fide_lowi_pkg::Drops)) begin
          found = 1'b1;
          rdata = dropped_q[4'((32'(raddr) - fide_reg_pkg::DROPPED_AT) >> 2)];
        end
        if (is_in(raddr, fide_reg_pkg::BASE_AT, 16)) begin
          found = 1'b1;
          rdata = base_q[4'((32'(raddr) - fide_reg_pkg::BASE_AT) >> 2)];
        end
        for (int unsigned i = 0; i < Members; i++) begin
          if (32'(raddr) == fide_reg_pkg::IDS_AT + 4 * i) begin
            found = 1'b1;
            rdata = 32'(ids_q[i]);
          end
        end
        for (int unsigned i = 0; i <= Members; i++) begin
          for (int unsigned bank = 0; bank < 3; bank++) begin
            if (32'(raddr) == fide_reg_pkg::WAIT_RUN_AT + bank * 256 + 8 * i) begin
              found = 1'b1;
              {rhigh, rdata} = 64'(wait_q[bank][i]);
            end
            if (32'(raddr) == fide_reg_pkg::WAIT_RUN_AT + bank * 256 + 8 * i + 4) begin
              found = 1'b1;
              rdata = high_q;
            end
          end
        end
      end
    endcase
  end
  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      s_axil_rvalid_o <= 1'b0;
    end else begin
      if (s_axil_rready_i) s_axil_rvalid_o <= 1'b0;
      if (read) s_axil_rvalid_o <= 1'b1;
    end
    if (read) begin
      s_axil_rdata_o <= rdata;
      s_axil_rresp_o <= found ? 2'b00 : 2'b10;
      if (found && !raddr[2]) high_q <= rhigh;
    end
  end

  if (fide_reg_pkg::WAIT_START_AT != fide_reg_pkg::WAIT_RUN_AT + 256 || fide_reg_pkg::WAIT_LEFT_AT != fide_reg_pkg::WAIT_RUN_AT + 512) begin : gen_bad_map
    $fatal(1, "fide_regs: the tables of waits are 256 bytes apart");
  end
  if (fide_reg_pkg::ROUND_AT[2] != 1'b0 || fide_reg_pkg::TIME_AT[2] != 1'b0 || fide_reg_pkg::FLIGHT_AT[2] != 1'b0) begin : gen_bad_align
    $fatal(1, "fide_regs: registers of 64 bits are aligned");
  end

  always_comb begin
    cfg_o = '0;
    cfg_o.me = config_q[fide_reg_pkg::CONFIG_ME +: 4];
    cfg_o.members = members_q[15:0];
    cfg_o.paths = config_q[fide_reg_pkg::CONFIG_PATHS +: 8];
    cfg_o.depth = config_q[fide_reg_pkg::CONFIG_DEPTH +: 2];
    cfg_o.hurry = config_q[fide_reg_pkg::CONFIG_HURRY];
    cfg_o.exit_together = config_q[fide_reg_pkg::CONFIG_EXIT_TOGETHER];
    cfg_o.flight_ns = flight_q[fide_lowi_pkg::DurW-1:0];
    cfg_o.late_ns = late_q[fide_lowi_pkg::DurW-1:0];
    cfg_o.drift_step = drift_q[19:0];
    cfg_o.begin_round = begin_round_q;
    cfg_o.begin_leader = begin_leader_q[fide_lowi_pkg::RankW-1:0];
    cfg_o.begin_next = begin_next_q;
  end
  assign wait_run_o    = wait_q[0];
  assign wait_start_o  = wait_q[1];
  assign wait_left_o   = wait_q[2];
  assign base_o        = base_q;
  assign key_o         = key_q;
  assign ids_o         = ids_q;
  assign ids_valid_o   = ids_valid_q[15:0];
  assign retry_ns_o    = retry_q;
  assign rate_gap_ns_o = gap_q;
  assign rate_burst_o  = burst_q[7:0];

  logic unused;
  assign unused = ^{s_axil_awaddr_i[1:0], s_axil_araddr_i[1:0], state_i};

`include "fide_assert.svh"
  `FIDE_ASSERT(BValidStays_A, !($past(s_axil_bvalid_o) && !$past(s_axil_bready_i) && $past(rst_ni)) || s_axil_bvalid_o)
  `FIDE_ASSERT(RValidStays_A, !($past(s_axil_rvalid_o) && !$past(s_axil_rready_i) && $past(rst_ni)) ||
               (s_axil_rvalid_o && $stable(s_axil_rdata_o)))

endmodule
