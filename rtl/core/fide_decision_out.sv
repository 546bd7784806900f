// SPDX-License-Identifier: Apache-2.0
// Decisions in the order of instances, as packets: a round as it was on the wire, behind the group's
// head. This engine's own come from its request FIFO, others from the receive buffers.
module fide_decision_out
#(
  parameter int unsigned MaxBeats = 16,
  parameter int unsigned Buffers  = 18,
  parameter int unsigned Depth    = 32,
  localparam int unsigned BeatW   = $clog2(MaxBeats + 1) + 1,
  localparam int unsigned AddrW   = $clog2(Buffers * MaxBeats)
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,
  input  logic                    clear_i,

  input  logic                    decide_valid_i,
  input  fide_lowi_pkg::decide_t  decide_i,

  output logic [AddrW-1:0]        buffer_addr_o,
  input  logic [511:0]            buffer_data_i,
  output logic                    free_valid_o,
  output logic [fide_lowi_pkg::BufW-1:0] free_buffer_o,

  input  logic [fide_lowi_pkg::LenW-1:0] req_len_i,
  output logic [BeatW-1:0]        req_beat_o,
  input  logic [511:0]            req_data_i,
  output logic                    req_pop_o,

  output logic                    m_axis_tvalid_o,
  input  logic                    m_axis_tready_i,
  output logic [511:0]            m_axis_tdata_o,
  output logic [63:0]             m_axis_tkeep_o,
  output logic                    m_axis_tlast_o,
  output logic [fide_lowi_pkg::RankW-1:0] m_axis_tuser_o   // the leader's rank
);

  localparam int unsigned QueueW = fide_lowi_pkg::DecideW;

  function automatic logic [63:0] swap64(input logic [63:0] value);
    for (int unsigned i = 0; i < 8; i++) swap64[8*i +: 8] = value[8*(7-i) +: 8];
  endfunction
  function automatic logic [31:0] swap32(input logic [31:0] value);
    for (int unsigned i = 0; i < 4; i++) swap32[8*i +: 8] = value[8*(3-i) +: 8];
  endfunction

  logic queue_valid, queue_full;
  fide_lowi_pkg::decide_t queue;
  logic [$clog2(Depth):0] queue_level;
  logic pop;
  fide_fifo #(.Width(QueueW), .Depth(Depth)) u_queue (
    .clk_i, .rst_ni, .clear_i, .push_i(decide_valid_i), .data_i(decide_i), .full_o(queue_full),
    .valid_o(queue_valid), .data_o(queue), .pop_i(pop), .level_o(queue_level)
  );

`ifndef SYNTHESIS
  if (QueueW != $bits(fide_lowi_pkg::decide_t)) begin : gen_bad_queue
    $fatal(1, "fide_decision_out: DecideW is not the width of decide_t");
  end
`endif

  // A word is read in one clock and offered in the next, until it is taken.
  logic offers_q;
  logic [BeatW-1:0] beat_q, beats, read_beat;
  logic [fide_lowi_pkg::LenW-1:0] len;
  logic took, last;
  assign len   = queue.own ? req_len_i : queue.len;
  assign beats = BeatW'((len + 11'd63) >> 6);
  assign took  = m_axis_tvalid_o && m_axis_tready_i;
  assign last  = beat_q + 1'b1 == beats;
  assign pop   = took && last;
  assign read_beat     = took ? beat_q + 1'b1 : beat_q;
  assign req_beat_o    = read_beat;
  assign buffer_addr_o = AddrW'(queue.buffer) * AddrW'(MaxBeats) + AddrW'(read_beat);
  assign free_valid_o  = pop && !queue.own;
  assign free_buffer_o = queue.buffer;
  assign req_pop_o     = pop && queue.own;

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clear_i) begin
      offers_q <= 1'b0;
      beat_q <= '0;
    end else begin
      offers_q <= queue_valid && !pop;
      beat_q <= pop ? '0 : read_beat;
    end
  end

  assign m_axis_tvalid_o = offers_q;
  assign m_axis_tlast_o  = last;
  assign m_axis_tkeep_o  = (last && len[5:0] != '0) ? ~({64{1'b1}} << len[5:0]) : '1;
  assign m_axis_tuser_o  = queue.leader;
  always_comb begin
    m_axis_tdata_o = queue.own ? req_data_i : buffer_data_i;
    if (queue.own && beat_q == '0) begin
      m_axis_tdata_o[0 +: 64] = swap64(queue.round);
      m_axis_tdata_o[64 +: 64] = swap64(queue.inst);
      m_axis_tdata_o[128 +: 32] = {16'd0, 8'd1, 8'd0};
      m_axis_tdata_o[160 +: 32] = swap32(32'(len) - 32'(fide_wire_pkg::ROUND_HEAD_LEN));
    end
  end

  logic unused;
  assign unused = ^queue_level;

`include "fide_assert.svh"
  `FIDE_ASSERT(QueueHasRoom_A, !(decide_valid_i && queue_full))
  `FIDE_ASSERT(StableUntilTaken_A, !($past(m_axis_tvalid_o) && !$past(m_axis_tready_i) && $past(rst_ni) && !$past(clear_i)) ||
               (m_axis_tvalid_o && $stable(m_axis_tdata_o) && $stable(m_axis_tlast_o)))

endmodule
