// SPDX-License-Identifier: Apache-2.0
// Writes frames of version 2: rounds, from the pre-filled first word and a request's words, or ⊥; and the
// messages exit and ready. A copy leaves on every path at the same time. With tags a word is written when
// the hash of every path takes it, and a frame leaves when its tag is known.
module fide_tx_gen
#(
  parameter int unsigned Paths    = 2,
  parameter int unsigned MaxBeats = 16,
  parameter int unsigned FifoDepth = 32,
  parameter int unsigned TagWords = 1,   // 64-bit words hashed each clock (fide_siphash); 0: no tags
  localparam int unsigned BeatW   = $clog2(MaxBeats + 1) + 1
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic                   clear_i,
  input  logic [511:0]           base_i,
  input  logic [127:0]           key_i,
  input  logic [7:0]             paths_i,
  input  logic [63:0]            time_i,
  input  logic [31:0]            retry_ns_i,    // between two exits or readies

  input  logic                   speak_valid_i,
  input  fide_lowi_pkg::speak_t  speak_i,
  output logic                   busy_o,        // a frame is written or waits
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
  // A round that was stopped may still wait when the next one is written: its words do not count as that one's.
  localparam int unsigned SeqW = 4;
  localparam int unsigned WordW = 512 + 64 + 1 + 1 + SeqW + RankW + 1;

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
  logic [fide_lowi_pkg::LenW-1:0] next_len, len;   // of the round that begins, and of the one that is written
  logic has_batch_q;
  logic [SeqW-1:0] seq_q;
  logic [47:0] number_q;
  logic [63:0] retry_at_q, sent_at;
  logic retry_due;

  assign next_len = speak_q.has_batch ? req_len_i : fide_lowi_pkg::LenW'(fide_wire_pkg::ROUND_HEAD_LEN);
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

  logic [Paths-1:0] full, room, waits, took_last;
  assign busy_o = pending_q || state_q != StIdle || waits != '0;
  logic writes, push, push_first, push_last;
  logic [Paths-1:0] tag_ready;
  logic spoilt_q;   // a stop cut the frame short: its tag is made wrong
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
    body = has_batch_q ? req_data_i : '0;
    if (beat_q == '0) begin
      body[0 +: 64] = swap64(speak_q.round);
      body[64 +: 64] = swap64(speak_q.inst);
      body[128 +: 32] = {16'd0, 7'd0, has_batch_q, 8'd0};
      body[160 +: 32] = swap32(32'(len) - 32'(fide_wire_pkg::ROUND_HEAD_LEN));
    end
    push_first = state_q == StHead;
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

  assign writes     = state_q == StHead || state_q == StBody;
  assign push       = writes && &(tag_ready | ~paths_i[Paths-1:0]);
  assign req_beat_o = (state_q == StBody) ? (push ? beat_q + 1'b1 : beat_q) : '0;
  assign req_pop_o  = state_q == StBody && push && push_last && has_batch_q && !spoilt_q && !clear_i;
  assign retry_due  = time_i >= retry_at_q;

  // The next frame begins when none is written, or with the last word of the one before.
  logic can_start, begins;
  assign can_start = &(room | ~paths_i[Paths-1:0]);
  assign begins    = can_start && (state_q == StIdle || (push && push_last));

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clear_i) begin
      pending_q <= 1'b0;
      retry_at_q <= '0;
      waits_q <= '0;
      left_o <= 1'b0;
      if (!rst_ni) begin
        state_q <= StIdle;
        number_q <= 48'd1;
        seq_q <= '0;
        spoilt_q <= 1'b0;
      end else begin
        // What was begun is ended, without its bytes: nobody may take it.
        if (writes) spoilt_q <= 1'b1;
        if (push && push_last) begin
          state_q <= StIdle;
          spoilt_q <= 1'b0;
        end else if (push) begin
          state_q <= StBody;
          beat_q <= (state_q == StHead) ? '0 : beat_q + 1'b1;
        end
      end
    end else begin
      if (speak_valid_i) begin
        pending_q <= 1'b1;
        speak_q <= speak_i;
      end
      if (push) begin
        if (state_q == StHead) number_q <= number_q + 1'b1;
        beat_q <= (state_q == StHead) ? '0 : beat_q + 1'b1;
        state_q <= push_last ? StIdle : StBody;
        if (push_last) spoilt_q <= 1'b0;
      end
      left_o <= 1'b0;
      if (waits_q != '0) begin
        waits_q <= waits_q & ~took_last;
        left_o <= (waits_q & ~took_last) == '0;
      end
      if (!send_exit_i && !send_ready_i) retry_at_q <= '0;
      if (pending_q && begins) begin
        state_q <= StHead;
        what_q <= Round;
        len <= next_len;
        has_batch_q <= speak_q.has_batch;
        seq_q <= seq_q + 1'b1;
        pending_q <= speak_valid_i;
        waits_q <= paths_i[Paths-1:0];
      end else if (!pending_q && !speak_valid_i && begins && retry_due && (send_exit_i || send_ready_i)) begin
        state_q <= StHead;
        what_q <= send_exit_i ? Exit : Ready;
        retry_at_q <= time_i + 64'(retry_ns_i);
      end
    end
  end

  logic [3:0] push_words;
  always_comb begin
    push_words = 4'd8;
    if (push_last && state_q == StBody && len[5:0] != '0) push_words = {1'b0, len[5:3]};
  end

  for (genvar i = 0; i < int'(Paths); i++) begin : gen_path
    logic [WordW-1:0] out;
    logic [$clog2(FifoDepth):0] level;
    logic out_round, first_q, has_tag;
    logic [SeqW-1:0] out_seq;
    logic [63:0] tag;
    // For a whole frame, and for the word that is pushed when it begins.
    assign room[i] = level <= ($clog2(FifoDepth) + 1)'(FifoDepth - MaxBeats - 1) - ($clog2(FifoDepth) + 1)'(writes);
    fide_fifo #(.Width(WordW), .Depth(FifoDepth)) u_fifo (
      .clk_i, .rst_ni, .clear_i(1'b0),
      .push_i(push && paths_i[i]),
      .data_i({what_q == Ready, ready_to_i, seq_q, what_q == Round && !spoilt_q && !clear_i, push_last, push_keep, push_data[i]}),
      .full_o(full[i]),
      .valid_o(waits[i]), .data_o(out), .pop_i(m_axis_tvalid_o[i] && m_axis_tready_i[i]), .level_o(level)
    );
    assign m_axis_tvalid_o[i] = waits[i] && has_tag;
    assign {m_axis_tuser_o[i], out_seq, out_round, m_axis_tlast_o[i], m_axis_tkeep_o[i]} = out[WordW-1:512];
    assign took_last[i] = m_axis_tvalid_o[i] && m_axis_tready_i[i] && m_axis_tlast_o[i] && out_round && out_seq == seq_q;
    always_ff @(posedge clk_i) begin
      if (!rst_ni) first_q <= 1'b1;
      else if (m_axis_tvalid_o[i] && m_axis_tready_i[i]) first_q <= m_axis_tlast_o[i];
    end

    if (TagWords == 0) begin : gen_no_tag
      assign tag_ready[i] = 1'b1;
      assign has_tag = 1'b1;
      assign tag = '0;
    end else begin : gen_tag
      logic hash_ready, hash_valid, hashed_q, spoilt_tag_q, tag_full, tag_waits;
      logic [63:0] hash;
      logic [$clog2(FifoDepth):0] tag_level;
      fide_siphash #(.Words(TagWords)) u_hash (
        .clk_i, .rst_ni, .key_i, .valid_i(push && paths_i[i]), .ready_o(hash_ready), .data_i(push_data[i]),
        .words_i(push_words), .first_i(push_first), .last_i(push_last), .valid_o(hash_valid), .tag_o(hash)
      );
      // A tag is taken before the next frame begins.
      assign tag_ready[i] = hash_ready && !(hash_valid && !hashed_q);
      always_ff @(posedge clk_i) begin
        if (!rst_ni) hashed_q <= 1'b1;
        else if (push && paths_i[i]) hashed_q <= 1'b0;
        else if (hash_valid) hashed_q <= 1'b1;
        if (push && paths_i[i] && push_last) spoilt_tag_q <= spoilt_q || clear_i;
      end
      fide_fifo #(.Width(64), .Depth(FifoDepth)) u_tags (
        .clk_i, .rst_ni, .clear_i(1'b0), .push_i(hash_valid && !hashed_q), .data_i(spoilt_tag_q ? ~hash : hash),
        .full_o(tag_full), .valid_o(tag_waits), .data_o(tag),
        .pop_i(m_axis_tvalid_o[i] && m_axis_tready_i[i] && first_q), .level_o(tag_level)
      );
      assign has_tag = !first_q || tag_waits;
      logic unused_tag;
      assign unused_tag = ^{tag_full, tag_level};
    end
    always_comb begin
      m_axis_tdata_o[i] = out[511:0];
      if (first_q) m_axis_tdata_o[i][8*fide_wire_pkg::TAG_AT +: 64] = tag;
    end
  end
  if (TagWords == 0) begin : gen_no_key
    logic unused_key;
    assign unused_key = ^{key_i, push_first, push_words, spoilt_q};
  end

`include "fide_assert.svh"
  `FIDE_ASSERT(NoOverflow_A, !push || (full & paths_i[Paths-1:0]) == '0)
  `FIDE_ASSERT(OneRoundAtATime_A, !(speak_valid_i && pending_q))

`ifdef FIDE_GEN_FV
  // No word is pushed into a FIFO that is full.
  always_comb if (rst_ni) no_overflow: assert (!push || full == '0);
`endif

endmodule
