// SPDX-License-Identifier: Apache-2.0
// Writes frames of version 2: rounds, from the pre-filled first word and a request's words, or ⊥; and the
// messages exit and ready. A copy leaves on every path at the same time.
module fide_tx_gen
#(
  parameter int unsigned Paths    = 2,
  parameter int unsigned MaxBeats = 16,
  parameter int unsigned FifoDepth = 32,
  localparam int unsigned BeatW   = $clog2(MaxBeats + 1) + 1
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic                   clear_i,
  input  logic [511:0]           base_i,
  input  logic [7:0]             paths_i,
  input  logic [63:0]            time_i,
  input  logic [31:0]            retry_ns_i,    // between two exits or readies

  input  logic                   speak_valid_i,
  input  fide_lowi_pkg::speak_t  speak_i,
  output logic                   left_o,        // the round's last word was taken on every path
  input  logic                   send_exit_i,
  input  logic                   send_ready_i,
  input  logic [fide_lowi_pkg::RankW-1:0] ready_to_i,

  // The request that is proposed.
  input  logic [fide_lowi_pkg::LenW-1:0] req_len_i,
  output logic [BeatW-1:0]       req_beat_o,
  input  logic [511:0]           req_data_i,
  output logic                   req_pop_o,

  output logic [Paths-1:0]         m_axis_tvalid_o,
  input  logic [Paths-1:0]         m_axis_tready_i,
  output logic [Paths-1:0][511:0]  m_axis_tdata_o,
  output logic [Paths-1:0][63:0]   m_axis_tkeep_o,
  output logic [Paths-1:0]         m_axis_tlast_o,
  // {to one member, its rank}; else to the group.
  output logic [Paths-1:0][fide_lowi_pkg::RankW:0] m_axis_tuser_o
);

  localparam int unsigned RankW = fide_lowi_pkg::RankW;
  localparam int unsigned WordW = 512 + 64 + 1 + 1 + RankW + 1;

  if (FifoDepth < 2 * (MaxBeats + 1) - 2) begin : gen_bad_depth
    $fatal(1, "fide_tx_gen: the FIFO of a path holds a whole frame");
  end

  logic unused;
  assign unused = ^paths_i;

  typedef enum logic [1:0] { StIdle, StHead, StBody } st_e;
  typedef enum logic [1:0] { Round, Exit, Ready } what_e;
  st_e state_q;
  what_e what_q;
  fide_lowi_pkg::speak_t speak_q;
  logic pending_q;
  logic [BeatW-1:0] beat_q, beats;
  logic [fide_lowi_pkg::LenW-1:0] len;
  logic [47:0] number_q;
  logic [63:0] retry_at_q, sent_at;
  logic retry_due;

  assign len   = speak_q.has_batch ? req_len_i : fide_lowi_pkg::LenW'(fide_wire_pkg::ROUND_HEAD_LEN);
  assign beats = BeatW'((len + 11'd63) >> 6);

  function automatic logic [63:0] swap64(input logic [63:0] value);
    for (int unsigned i = 0; i < 8; i++) swap64[8*i +: 8] = value[8*(7-i) +: 8];
  endfunction
  function automatic logic [47:0] swap48(input logic [47:0] value);
    for (int unsigned i = 0; i < 6; i++) swap48[8*i +: 8] = value[8*(5-i) +: 8];
  endfunction
  function automatic logic [31:0] swap32(input logic [31:0] value);
    for (int unsigned i = 0; i < 4; i++) swap32[8*i +: 8] = value[8*(3-i) +: 8];
  endfunction

  logic [Paths-1:0] full, room, took_last;
  logic push, push_last;
  logic [63:0] push_keep;
  logic [Paths-1:0][511:0] push_data;
  logic [Paths-1:0] waits_q;   // whose copy of the round has not left

  // The first word: what changes is laid over the pre-filled one.
  logic [511:0] head, body;
  assign sent_at = (what_q == Round) ? speak_q.sent_ns : time_i;
  always_comb begin
    head = base_i;
    head[8*fide_wire_pkg::MAGIC_AT +: 16] = {fide_wire_pkg::MAGIC[7:0], fide_wire_pkg::MAGIC[15:8]};
    head[8*fide_wire_pkg::VERSION_FLAGS_AT +: 8] = {fide_wire_pkg::VERSION, 4'd0};
    head[8*fide_wire_pkg::KIND_AT +: 8] = (what_q == Round) ? fide_wire_pkg::KIND_COPY : fide_wire_pkg::KIND_MESSAGE;
    head[8*fide_wire_pkg::CHANNEL_AT +: 8] = fide_wire_pkg::CHANNEL_GROUPS;
    head[8*fide_wire_pkg::NUMBER_AT +: 48] = swap48(number_q);
    head[8*fide_wire_pkg::SENT_NS_AT +: 64] = swap64(sent_at);
    head[8*fide_wire_pkg::TAG_AT +: 64] = '0;
    head[8*fide_wire_pkg::ENGINE_AT +: 8] = fide_wire_pkg::ENGINE_LOWI;
    head[8*fide_wire_pkg::TYPE_AT +: 8] = (what_q == Round) ? fide_wire_pkg::LOWI_ROUND :
                                          (what_q == Exit) ? fide_wire_pkg::LOWI_EXIT : fide_wire_pkg::LOWI_READY;
    body = speak_q.has_batch ? req_data_i : '0;
    if (beat_q == '0) begin
      body[0 +: 64] = swap64(speak_q.round);
      body[64 +: 64] = swap64(speak_q.inst);
      body[128 +: 32] = {16'd0, 7'd0, speak_q.has_batch, 8'd0};
      body[160 +: 32] = swap32(32'(len) - 32'(fide_wire_pkg::ROUND_HEAD_LEN));
    end
    push_last = (state_q == StHead) ? what_q != Round : beat_q + 1'b1 == beats;
    push_keep = '1;
    if (state_q == StBody && push_last && len[5:0] != '0) push_keep = ~({64{1'b1}} << len[5:0]);
    for (int unsigned i = 0; i < Paths; i++) begin
      push_data[i] = (state_q == StHead) ? head : body;
      if (state_q == StHead) push_data[i][8*fide_wire_pkg::PATH_KEY_AT + 4 +: 4] = (what_q == Round) ? 4'(i) : 4'd0;
    end
  end
  // The number has 48 bits, and kind and channel stand before it.
  if (fide_wire_pkg::NUMBER_AT != 18 || fide_wire_pkg::NUMBER_BYTES != 6) begin : gen_bad_number
    $fatal(1, "fide_tx_gen: the number's place");
  end

  assign push       = state_q == StHead || state_q == StBody;
  assign req_beat_o = (state_q == StBody) ? beat_q + 1'b1 : '0;
  assign req_pop_o  = state_q == StBody && push_last && speak_q.has_batch;
  assign retry_due  = time_i >= retry_at_q;

  logic can_start;
  assign can_start = &(room | ~paths_i[Paths-1:0]);

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clear_i) begin
      pending_q <= 1'b0;
      retry_at_q <= '0;
      waits_q <= '0;
      left_o <= 1'b0;
      if (!rst_ni) begin
        state_q <= StIdle;
        number_q <= 48'd1;
      end else if (state_q == StHead && push_last || state_q == StBody && push_last) begin
        state_q <= StIdle;
      end
    end else begin
      if (speak_valid_i) begin
        pending_q <= 1'b1;
        speak_q <= speak_i;
      end
      unique case (state_q)
        StIdle: begin
          if (pending_q && can_start) begin
            state_q <= StHead;
            what_q <= Round;
            pending_q <= speak_valid_i;
            waits_q <= paths_i[Paths-1:0];
          end else if (!pending_q && !speak_valid_i && can_start && retry_due && (send_exit_i || send_ready_i)) begin
            state_q <= StHead;
            what_q <= send_exit_i ? Exit : Ready;
            retry_at_q <= time_i + 64'(retry_ns_i);
          end
        end
        StHead: begin
          number_q <= number_q + 1'b1;
          beat_q <= '0;
          state_q <= push_last ? StIdle : StBody;
        end
        default: begin
          beat_q <= beat_q + 1'b1;
          if (push_last) state_q <= StIdle;
        end
      endcase
      left_o <= 1'b0;
      if (waits_q != '0) begin
        waits_q <= waits_q & ~took_last;
        left_o <= (waits_q & ~took_last) == '0;
      end
      if (!send_exit_i && !send_ready_i) retry_at_q <= '0;
    end
  end

  for (genvar i = 0; i < int'(Paths); i++) begin : gen_path
    logic [WordW-1:0] out;
    logic [$clog2(FifoDepth):0] level;
    logic out_round;
    assign room[i] = level <= ($clog2(FifoDepth) + 1)'(FifoDepth - MaxBeats - 1);
    fide_fifo #(.Width(WordW), .Depth(FifoDepth)) u_fifo (
      .clk_i, .rst_ni, .clear_i(1'b0),
      .push_i(push && paths_i[i]),
      .data_i({what_q == Ready, ready_to_i, what_q == Round, push_last, push_keep, push_data[i]}),
      .full_o(full[i]),
      .valid_o(m_axis_tvalid_o[i]), .data_o(out), .pop_i(m_axis_tready_i[i]), .level_o(level)
    );
    assign {m_axis_tuser_o[i], out_round, m_axis_tlast_o[i], m_axis_tkeep_o[i], m_axis_tdata_o[i]} = out;
    assign took_last[i] = m_axis_tvalid_o[i] && m_axis_tready_i[i] && m_axis_tlast_o[i] && out_round;
  end

`include "fide_assert.svh"
  `FIDE_ASSERT(NoOverflow_A, !push || (full & paths_i[Paths-1:0]) == '0)
  `FIDE_ASSERT(OneRoundAtATime_A, !(speak_valid_i && pending_q))

endmodule
